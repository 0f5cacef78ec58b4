"""Colours of heat maps of bytes: a perceptually uniform map whose largest value stands out from the page.

On a light page the largest value is dark, on a dark page it is bright; `labkit.plots.dark` replaces one map by the
other. Without their ends, so that both differ from "no bytes", the page's own colour.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap

LIGHT = ListedColormap(colormaps["cividis_r"](np.linspace(0.08, 0.75, 256)))
DARK = ListedColormap(colormaps["cividis"](np.linspace(0.25, 1.0, 256)))
ON_LARGE, ON_SMALL = "#FDFDFD", "#020202"
"""Text on a large value and on a small one, on a light page; on a dark page they change places."""


def on_a_dark_page(image: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image of (height, width, 4) bytes with the colours of `LIGHT` replaced by those of `DARK`."""
    light, dark = _packed()
    colours = image[..., 0].astype(np.uint32) << 16 | image[..., 1].astype(np.uint32) << 8 | image[..., 2]
    places = np.searchsorted(light, colours).clip(0, len(light) - 1)
    replaced = image.copy()
    found = light[places] == colours
    replaced[found, :3] = dark[places[found]]
    return replaced


@cache
def _packed() -> tuple[Any, Any]:
    """The light map's colours as numbers, sorted, and the three bytes that replace each."""
    numbers = np.arange(LIGHT.N)
    light, dark = LIGHT(numbers, bytes=True), DARK(numbers, bytes=True)
    packed = light[:, 0].astype(np.uint32) << 16 | light[:, 1].astype(np.uint32) << 8 | light[:, 2]
    packed, first = np.unique(packed, return_index=True)
    return packed, dark[first, :3]
