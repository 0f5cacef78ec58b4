"""Peak memory of several runs: a bar for each, by category, beside the capacity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Category, Trace
from labkit.units import byte_unit, size

_WIDTH = 0.66
_LEAST_OF_CAPACITY = 0.15
"""Share of the GPU's memory below which the capacity line is left out: the bars would be flat."""


def peaks(traces: Mapping[str, Trace], x: str, capacity: float | None = None, title: str = "") -> Picture:
    """Draw the peak memory of each run's fullest rank; keys of `traces` name the bars, `x` is the axis label.

    capacity: bytes of one GPU's memory, drawn as a line if a run comes near it. Raises ValueError without runs, and for
    a trace without memory accounting.
    """
    held = {name: _fullest(name, trace) for name, trace in traces.items()}
    if not held:
        raise ValueError("traces must have a run to draw, got none")
    highest = max(sum(peak.values()) for peak in held.values())
    in_reach = capacity is not None and highest >= _LEAST_OF_CAPACITY * capacity
    top = max(highest, capacity) if capacity is not None and in_reach else highest
    unit, unit_bytes = byte_unit(top)
    picture = Picture(height=3.4, alt=_describe(held, x, title, capacity))
    axes = picture.add_subplot()
    clocks = "/".join(dict.fromkeys(trace.clock for trace in traces.values()))
    axes.set_title(f"{title or 'Memory at its peak'} · {clocks}", loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(f"bytes of the fullest rank ({unit})")
    used = [category for category in Category if any(peak[category] for peak in held.values())]
    for place, peak in enumerate(held.values()):
        below = 0.0
        for category in used:
            share = peak[category] / unit_bytes
            axes.bar(place, share, _WIDTH, bottom=below, color=palette.MEMORY[category])
            below += share
        axes.annotate(
            size(sum(peak.values())), (place, below), (0, 3), textcoords="offset points", ha="center", fontsize=8.5
        )
    axes.set_xticks(range(len(held)), list(held))
    axes.set_ylim(0, 1.12 * top / unit_bytes)
    axes.spines[["top", "right"]].set_visible(False)
    handles: list[Any] = [Patch(color=palette.MEMORY[category], label=category.value) for category in reversed(used)]
    if capacity is not None and in_reach:
        style: dict[str, Any] = {"color": palette.CAPACITY, "linewidth": 1.6, "linestyle": "--"}
        axes.axhline(capacity / unit_bytes, **style)
        handles.insert(0, Line2D([], [], label=f"capacity {size(capacity)}", **style))
    picture.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _fullest(name: str, trace: Trace) -> dict[Category, int]:
    """Memory by category at the peak of the fullest rank."""
    rank = max(range(trace.world_size), key=trace.peak_memory)
    if not trace.peak_memory(rank):
        raise ValueError(f"traces must have memory in them, got none in {name!r}")
    return trace.peak_by_category(rank)


def _describe(held: Mapping[str, Mapping[Category, int]], x: str, title: str, capacity: float | None) -> str:
    runs = [
        f"{name}: {size(sum(peak.values()))}, of it {', '.join(f'{c.value} {size(n)}' for c, n in peak.items() if n)}"
        for name, peak in held.items()
    ]
    limit = f" The capacity is {size(capacity)}." if capacity is not None else ""
    return f"{title or 'Memory at its peak'}, by category, over {x}. {'; '.join(runs)}.{limit}"
