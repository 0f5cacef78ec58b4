"""A player for pictures in steps: play, pause, step, and a slider. Its page side is static/stepper.js."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

if TYPE_CHECKING:
    from labkit.plots import Picture

_STATIC = Path(__file__).parent / "static"
SECONDS = 0.9
"""Seconds for which each step is shown while playing."""


class Stepper(anywidget.AnyWidget):
    """Pictures by step, drawn when the page first needs them; afterwards the page shows them without the kernel."""

    _esm = _STATIC / "stepper.js"
    _css = _STATIC / "stepper.css"
    about = traitlets.Dict().tag(sync=True)
    """Name of a step, number of the first and the last one, alternative text of the first, seconds per step."""

    def __init__(self, draw: Callable[[int], Picture], about: dict[str, Any]) -> None:
        super().__init__(about=about)
        self._draw = draw
        self.on_msg(self._send_step)

    def _send_step(self, _: object, request: dict[str, Any], buffers: object) -> None:
        step = int(request["step"])
        picture = self._draw(step)
        width, height = picture.size
        shown = {"step": step, "alt": picture.alt, "width": width, "height": height}
        self.send(shown, buffers=list(picture.themed()))


def step_through(
    draw: Callable[[int], Picture], last: int, *, start: int = 0, name: str = "round", seconds: float = SECONDS
) -> None:
    """Show `draw(start)`, with a player for steps 0 to `last`; `name` says in words what is stepped through.

    Playing shows each step for `seconds`. In the page the player takes the place of the picture; a stored or exported
    notebook keeps the picture.
    """
    from IPython.display import display

    drawn = cache(draw)
    first = drawn(start)
    display(first)
    about = {"name": name, "start": start, "last": last, "alt": first.alt, "seconds": seconds}
    player = Stepper(drawn, about)
    widget, _ = player._repr_mimebundle_() or ({}, {})
    view = "application/vnd.jupyter.widget-view+json"
    display({view: widget[view]}, raw=True)
