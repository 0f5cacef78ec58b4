"""The plot of two split matrices: every rank has its columns of the first and the same rows of the second."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from labkit.plots import matrix_cuts


def test_each_rank_stands_in_its_part_of_all_three() -> None:
    picture = matrix_cuts(3, "On three")
    (axes,) = picture.axes
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    # A, x A, B
    assert numbers == ["0", "1", "2"] * 3
    assert axes.get_title(loc="left") == "On three"
    assert "rank 0 has 2, rank 1 has 3, rank 2 has 3" in picture.alt
    assert Image.open(io.BytesIO(picture.png())).width > 100


def test_other_numbers_of_ranks_are_refused() -> None:
    for ranks in (0, 9):
        with pytest.raises(ValueError, match=f"ranks must be from 1 to 8, got {ranks}"):
            matrix_cuts(ranks)
