"""Thousands of bars in lanes, drawn at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.collections import PolyCollection


def bars_of(
    spans: Sequence[tuple[float, float, float]], height: float, colour: str, label: str, layer: int
) -> PolyCollection:
    """Bars of one colour, each given as (start, end, top). They form one array: single bars are slow in matplotlib."""
    start, end, top = np.array(spans, dtype=float).reshape(-1, 3).T
    corners = [(start, top), (end, top), (end, top + height), (start, top + height)]
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    # matplotlib accepts an array, though its type annotation does not
    return PolyCollection(vertices, facecolor=colour, linewidth=0, label=label, zorder=1 + layer)  # type: ignore[arg-type]
