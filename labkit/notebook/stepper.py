"""A slider that steps through pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.plots import Picture


def step_through(draw: Callable[[int], Picture], last: int, *, start: int = 0, name: str = "round") -> None:
    """Show `draw(start)` under a slider from 0 to `last` that draws the other steps.

    The picture is a separate output: a stored notebook, and a reader without a kernel, shows `draw(start)`.
    """
    import ipywidgets  # type: ignore[import-untyped]
    from IPython.display import display, update_display

    @cache
    def bundle(step: int) -> tuple[dict[str, str], dict[str, Any]]:
        return draw(step).mimebundle()

    style = {"description_width": "initial"}  # else long names are cut off
    slider = ipywidgets.IntSlider(value=start, min=0, max=last, description=name, style=style)
    display(slider)
    data, metadata = bundle(start)
    handle = display(data, raw=True, metadata=metadata, display_id=True)

    def moved(change: dict[str, Any]) -> None:
        data, metadata = bundle(change["new"])
        update_display(data, raw=True, metadata=metadata, display_id=handle.display_id)

    slider.observe(moved, names="value")
