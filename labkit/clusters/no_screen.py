"""Matplotlib's backend on ranks; the notebook's own backend would print `Figure(640x480)` there, without a picture."""

from __future__ import annotations

import functools
import sys
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas", "show"]


def show(*_: Any, **__: Any) -> None:
    """`plt.show()`."""
    _tell()


@functools.cache
def _tell() -> None:
    print("ranks have no display: return the data and plot it in the notebook; plt.savefig() works", file=sys.stderr)
