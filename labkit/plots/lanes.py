"""Bars in lanes, thousands of them at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.collections import PolyCollection


def bars_of(
    spans: Sequence[tuple[float, float, float]], height: float, colour: str, label: str, layer: int
) -> PolyCollection:
    """Bars of one colour, each from (start, end, top). As one array: matplotlib is slow with single ones."""
    start, end, top = np.array(spans, dtype=float).reshape(-1, 3).T
    corners = [(start, top), (end, top), (end, top + height), (start, top + height)]
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    # arrays are taken in at once, though the type that matplotlib states has none
    return PolyCollection(vertices, facecolor=colour, linewidth=0, label=label, zorder=1 + layer)  # type: ignore[arg-type]
