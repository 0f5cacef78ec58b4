"""A matplotlib figure with alternative text in the notebook, for readers who cannot see it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

WIDTH = 7.6
"""Inches: 760 pixels in a notebook, about the width of a cell."""
_PIXELS_PER_INCH = 100
_SHARPER = 1.6
"""Pixels in the file per pixel on the page: crisp on a high-resolution screen, still a small file."""


class Picture(Figure):
    """A figure with alternative text. It draws without a display and without pyplot, so no figure stays open.

    `alt` begins with a sentence without measured numbers; a stored notebook keeps it as the picture's plain text, which
    can be compared between runs. The whole of `alt` goes into the image's metadata, where IPython's own `Image` puts
    it. nbconvert's classic template reads it there. JupyterLab 4.6 does not, but HTML images would vanish from
    untrusted notebooks. There, use `print(picture.alt)`.
    """

    def __init__(self, height: float, width: float = WIDTH, alt: str = "") -> None:
        """Sizes are in inches of 100 pixels."""
        super().__init__(figsize=(width, height), dpi=_PIXELS_PER_INCH, layout="constrained")
        self.alt = alt

    def png(self) -> bytes:
        """Return the picture as PNG, small enough for a notebook under version control."""
        drawn, file = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png", dpi=_PIXELS_PER_INCH * _SHARPER)
        # pictures have few flat colours: a palette of 128 looks the same, in a third of the bytes
        image = Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        image.save(file, format="png", optimize=True)
        return file.getvalue()

    def mimebundle(self) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Return data and metadata in the form of Jupyter's messages."""
        width, height = (round(inches * _PIXELS_PER_INCH) for inches in self.get_size_inches())
        data = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": f"<{self.alt.split('. ')[0]}>"}
        return data, {"image/png": {"alt": self.alt, "width": width, "height": height}}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        return self.mimebundle()


def rank_ticks(axes: Axes, world_size: int, *, on: Sequence[str] = ("y",), most: int = 16) -> None:
    """Label the ranks along the axes named in `on`, with at most `most` labels, always including rank 0."""
    step = 1
    while world_size / step > most:
        step *= 2
    ticks = list(range(0, world_size, step))
    for name in on:
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_ticks(ticks, [str(rank) for rank in ticks])


def plain(axes: Axes) -> None:
    """Remove the frame and the tick marks: lanes and grids need neither."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
