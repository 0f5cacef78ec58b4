"""Colours remain distinguishable for colour-blind readers, measured with a model of their vision."""

from itertools import combinations

import numpy as np
import pytest

from labkit.checks import report_html
from labkit.plots import palette

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(colour: str, matrix: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as seen through `matrix`."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(matrix @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize(
    "colours",
    [
        [*palette.KIND.values(), palette.IDLE],
        [*palette.KIND.values(), palette.DARK_IDLE],
        [*palette.MEMORY.values(), palette.CAPACITY],
        [palette.DARK_PAGE.get(colour, colour) for colour in [*palette.MEMORY.values(), palette.CAPACITY, "#FFFFFF"]],
        [*palette.STEP.values()],
        [palette.WRONG, palette.RIGHT],
    ],
    ids=["kinds", "kinds on a dark page", "memory", "memory on a dark page", "parts of a step", "chunks"],
)
def test_colours_that_meet_in_one_picture_are_far_apart(colours: list[str], blindness: str) -> None:
    seen = [lab(colour, BLINDNESS[blindness]) for colour in colours]
    # about 2 is just noticeable side by side; 10 is obvious at a glance
    for (a, first), (b, second) in combinations(zip(colours, seen, strict=True), 2):
        assert np.linalg.norm(first - second) > 10, (a, b)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as in WCAG 2.2, 1 to 21."""

    def luminance(colour: str) -> float:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return float(
            np.dot(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), [0.2126, 0.7152, 0.0722])
        )

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#FFFFFF", "#111111"])
def test_text_and_marks_are_legible_on_light_and_dark_pages(page: str) -> None:
    def shown(colour: str) -> str:
        return palette.DARK_PAGE.get(colour, colour) if page == "#111111" else colour

    for text in ("#000000", palette.NOTE, palette.MESSAGE):
        assert contrast(shown(text), page) >= 4.5, text
        assert contrast(shown(text), shown(palette.IDLE)) >= 4.5, text
    assert contrast(palette.DARK_TEXT, palette.WRONG) >= 4.5
    assert contrast(palette.WRONG, page) >= 3
    assert all(contrast(colour, page) >= 3 for _, colour in report_html.MARKS.values())


@pytest.mark.parametrize("page", ["light", "dark"])
def test_text_on_categories_of_memory_is_legible_on_light_and_dark_pages(page: str) -> None:
    replaced = palette.DARK_PAGE if page == "dark" else {}
    for category, colour in palette.MEMORY.items():
        text = palette.TEXT_ON_MEMORY[category]
        assert contrast(replaced.get(text, text), replaced.get(colour, colour)) >= 4, category
