"""A matplotlib figure with alternative text in the notebook, for readers who cannot see it."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from labkit.plots.dark import DarkCanvas

if TYPE_CHECKING:
    from labkit.trace import Trace

WIDTH = 7.6
"""Width in inches: 760 pixels in a notebook, about the width of a cell."""
_PIXELS_PER_INCH = 100
SHARPER = 1.6
"""Pixels in the file per pixel on the page: crisp on a high-resolution screen, still a small file."""


class Picture(Figure):
    """A figure with alternative text, for light and dark pages. It draws without a display and without pyplot.

    In a notebook it is HTML: an image with `alt`, which JupyterLab's dark themes replace by the same picture in dark
    colours. The light one is shown where style sheets are removed: on GitHub, and in notebooks that JupyterLab does not
    trust. Programs that cannot show HTML use the PNG. `alt` begins with a sentence without measured numbers; a stored
    notebook keeps it as the picture's plain text, which can be compared between runs.
    """

    trace: Trace | None = None
    """The trace whose timeline the picture is, if it is one."""
    title: str = ""
    """The timeline's title."""

    def __init__(self, height: float, width: float = WIDTH, alt: str = "") -> None:
        """Sizes are in inches of 100 pixels."""
        super().__init__(figsize=(width, height), dpi=_PIXELS_PER_INCH, layout="constrained")
        self.alt = alt

    def png(self) -> bytes:
        """Return the picture as PNG on white, small enough for a notebook under version control."""
        return _encoded(self._drawn(FigureCanvasAgg), "png")

    def themed(self, sharper: float = SHARPER) -> tuple[bytes, bytes]:
        """Return the picture for light and for dark pages as lossless WebP: for browsers, smaller than PNG.

        sharper: pixels in the file per pixel on the page.
        """
        light, dark = self._drawn_twice(sharper)
        return _encoded(light, "webp"), _encoded(dark, "webp")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height on the page, in pixels."""
        width, height = (round(inches * _PIXELS_PER_INCH) for inches in self.get_size_inches())
        return width, height

    def mimebundle(self) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Return data and metadata in the form of Jupyter's messages."""
        width, height = self.size
        light, dark = self._drawn_twice()
        data = {
            "text/html": _html(self.alt, self.size, _encoded(light, "webp"), _encoded(dark, "webp")),
            "image/png": base64.b64encode(_encoded(light, "png")).decode(),
            "text/plain": f"<{self.alt.split('. ')[0]}>",
        }
        return data, {"image/png": {"alt": self.alt, "width": width, "height": height}}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        return self.mimebundle()

    def _drawn_twice(self, sharper: float = SHARPER) -> tuple[Image.Image, Image.Image]:
        """The drawing for light and for dark pages: it is laid out once, which takes as long as drawing it."""
        light, layout = self._drawn(FigureCanvasAgg, sharper), self.get_layout_engine()
        self.set_layout_engine("none")
        try:
            return light, self._drawn(DarkCanvas, sharper)
        finally:
            self.set_layout_engine(layout)

    def _drawn(self, canvas: type[FigureCanvasAgg], sharper: float = SHARPER) -> Image.Image:
        self.set_dpi(_PIXELS_PER_INCH * sharper)
        try:
            drawn: Any = canvas(self)
            drawn.draw()
            image = Image.fromarray(np.asarray(drawn.buffer_rgba())).convert("RGB")
        finally:
            self.set_dpi(_PIXELS_PER_INCH)
        # pictures have few flat colours: a palette of 128 looks the same, in a third of the bytes
        return image.quantize(128, dither=Image.Dither.NONE)


def _encoded(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    if form == "webp":
        image.convert("RGB").save(file, "webp", lossless=True)
    else:
        image.save(file, form, optimize=True)
    return file.getvalue()


def _html(alt: str, size: tuple[int, int], light: bytes, dark: bytes) -> str:
    """The light picture; on a dark page the dark one is the background of the same element, with the same `alt`."""
    name = f"labkit-picture-{hashlib.sha256(dark).hexdigest()[:12]}"
    width, height = size
    return (
        f'<style>body[data-jp-theme-light="false"] .{name} {{object-position: -9999px; '
        f"background: url({_address(dark)}) 0 0 / 100% 100% no-repeat}}</style>"
        f'<img class="{name}" alt="{escape(alt)}" width="{width}" height="{height}" src="{_address(light)}">'
    )


def _address(webp: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(webp).decode()}"


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
