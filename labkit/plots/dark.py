"""Figures as on a dark page: the same drawing, in the colours of `palette.DARK_PAGE`.

Colours are replaced where they are drawn, so a figure has no second version and nothing of it can be forgotten. Of
images, heat maps of bytes have their dark colours (`labkit.plots.heat`); others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgb

from labkit.plots import heat, palette

_HEAT = {
    heat.ON_LARGE: heat.ON_SMALL,
    heat.ON_SMALL: heat.ON_LARGE,
    **{to_hex(heat.LIGHT(number)): to_hex(heat.DARK(number)) for number in range(heat.LIGHT.N)},
}
_REPLACED = {light.lower(): to_rgb(dark) for light, dark in (palette.DARK_PAGE | _HEAT).items()}
_FACES = {
    "draw_path": [2],
    "draw_markers": [4],
    "draw_path_collection": [5, 6],
    "draw_quad_mesh": [6, 8],
    "draw_text": [],
}
"""Methods of matplotlib's renderer, with the places of colours in their arguments after the graphics context."""
_IMAGES = ("draw_image",)


class DarkCanvas(FigureCanvasAgg):
    """A canvas of matplotlib that draws a figure for a dark page."""

    _made_for: tuple[float, ...] = ()

    def get_renderer(self) -> Any:
        wanted = (*self.figure.bbox.size, self.figure.dpi)
        if wanted != self._made_for:  # matplotlib asks several times while it draws
            renderer = RendererAgg(*wanted)  # type: ignore[no-untyped-call]  # matplotlib does not annotate it
            for name, faces in _FACES.items():
                setattr(renderer, name, _dark_drawing(renderer, getattr(renderer, name), faces))
            for name in _IMAGES:
                setattr(renderer, name, _dark_image(getattr(renderer, name)))
            self._made_for, self.renderer = wanted, renderer
        return self.renderer


def _dark_drawing(renderer: Any, draw: Callable[..., None], faces: list[int]) -> Callable[..., None]:
    def dark_draw(gc: Any, *args: Any, **kwargs: Any) -> None:
        context = renderer.new_gc()
        context.copy_properties(gc)
        context.set_foreground(_dark(gc.get_rgb()), isRGBA=True)
        replaced = [_dark(value) if place in faces else value for place, value in enumerate(args)]
        draw(context, *replaced, **kwargs)

    return dark_draw


def _dark_image(draw: Callable[..., None]) -> Callable[..., None]:
    def dark_draw(gc: Any, x: float, y: float, image: Any) -> None:
        draw(gc, x, y, heat.on_a_dark_page(image))

    return dark_draw


def _dark(colours: Any) -> Any:
    """Replace a colour, or each row of an array of colours; None stays None."""
    if colours is None:
        return None
    if np.ndim(colours) == 2:
        return np.array([_dark(colour) for colour in colours]).reshape(np.shape(colours))
    red, green, blue, *alpha = (float(part) for part in colours)
    return (*_replacement(red, green, blue), *alpha)


@cache
def _replacement(red: float, green: float, blue: float) -> tuple[float, float, float]:
    return _REPLACED.get(to_hex((red, green, blue)), (red, green, blue))
