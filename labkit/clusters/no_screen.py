"""Matplotlib's backend on ranks, where a notebook's own would print `Figure(640x480)` in place of a picture."""

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
    print("a rank has no screen: plot in the notebook from what comes back; plt.savefig() works", file=sys.stderr)
