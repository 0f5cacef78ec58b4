"""The plot of matrices beside each other: its words give each one's share of elements that are not 0."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from labkit.plots import heat_maps


def test_words_say_how_much_is_left() -> None:
    alt = heat_maps({"gradient\n16 bytes": torch.ones(2, 2), "TopK": torch.eye(2)}, "What arrives").alt
    assert "What arrives. gradient, 16 bytes: 100 % of the elements are not 0; TopK: 50 %" in alt


def test_it_draws_one_matrix_many_and_zeros() -> None:
    for count in (1, 3, 5):
        drawn = heat_maps({f"matrix {n}": torch.zeros(3, 4) for n in range(count)}, rows="row", columns="column")
        assert Image.open(io.BytesIO(drawn.png())).width > 0


@pytest.mark.parametrize(("lowest", "scale"), [(-1.0, (-3.0, 3.0)), (0.0, (0.0, 3.0))])
def test_the_scale_is_that_of_the_values(lowest: float, scale: tuple[float, float]) -> None:
    drawn = heat_maps({"one": torch.tensor([[lowest, 1.0]]), "other": torch.tensor([[2.0, 3.0]])})
    assert [axes.images[0].get_clim() for axes in drawn.axes[:2]] == [scale, scale]


def test_no_matrix_and_a_vector_are_refused() -> None:
    with pytest.raises(ValueError, match="must have one to draw"):
        heat_maps({})
    with pytest.raises(ValueError, match=r"two dimensions, got \(3,\) for 'bias'"):
        heat_maps({"bias": torch.zeros(3)})
