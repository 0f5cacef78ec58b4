"""The plot of the 16-bit range: every number is counted once, by what rounding does to it."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from labkit.plots import exponents


def legend(values: torch.Tensor, scale: float = 1.0, dtype: torch.dtype = torch.float16) -> list[str]:
    return [text.get_text() for text in exponents(values, scale, dtype).legends[0].get_texts()]


def test_each_number_has_its_fate() -> None:
    values = torch.tensor([2.0**-26, 2.0**-20, -1.0, 2.0**17, 0.0])
    assert legend(values) == ["becomes 0: 25 %", "loses digits: 25 %", "kept: 25 %", "becomes infinite: 25 %"]
    assert legend(values, 2.0**12)[:3] == ["becomes 0: 0 %", "loses digits: 0 %", "kept: 75 %"]
    assert legend(values, dtype=torch.bfloat16)[2] == "kept: 100 %"


def test_words_say_what_the_picture_shows() -> None:
    alt = exponents(torch.tensor([2.0**-30, 1.0])).alt
    assert "what float16 makes of each. 50 % becomes 0, 0 % loses digits, 50 % kept, 0 % becomes infinite." in alt


def test_it_draws_with_nothing_in_it_and_names_a_bad_scale() -> None:
    image = Image.open(io.BytesIO(exponents(torch.zeros(3), title="no numbers").png()))
    assert image.width > 100
    with pytest.raises(ValueError, match=r"scale must be above 0, got -1\.0"):
        exponents(torch.ones(1), -1.0)
