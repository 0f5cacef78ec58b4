"""Peak memory of several runs: a bar for each, by category, beside the capacity."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from labkit.plots import palette
from labkit.plots.picture import WIDTH, Picture
from labkit.trace import Category, Trace
from labkit.units import byte_unit, size

_THICKNESS = 0.62
"""Height of a bar; the distance to the next one is 1."""
_FONT = 8.5
"""Size of the labels, in points."""
_MARGIN = 8.0
"""Room that a label needs beyond its width, in points."""
_LEAST_NAMED = 0.05
"""Share of a bar below which a part is not listed beside it."""
_LEAST_OF_CAPACITY = 0.15
"""Share of the GPU's memory below which the capacity line is left out: the bars would be short."""


def peaks(traces: Mapping[str, Trace], label: str, capacity: float | None = None, title: str = "") -> Picture:
    """Draw the peak memory of each run's fullest rank; keys of `traces` name the bars, `label` says what they are.

    Each part of a bar is labelled where it has room, or beside the bar. capacity: bytes of one GPU's memory, drawn as a
    line if a run comes near it. Raises ValueError without runs, and for a trace without memory accounting.
    """
    held = {name: _fullest(name, trace) for name, trace in traces.items()}
    if not held:
        raise ValueError("traces must have a run to draw, got none")
    highest = max(sum(peak.values()) for peak in held.values())
    in_reach = capacity is not None and highest >= _LEAST_OF_CAPACITY * capacity
    limit = capacity if in_reach else None
    unit, unit_bytes = byte_unit(max(highest, limit or 0))
    picture = Picture(height=0.42 * len(held) + 1.35, alt=_describe(held, label, title, capacity))
    axes = picture.add_subplot()
    clocks = "/".join(dict.fromkeys(trace.clock for trace in traces.values()))
    axes.set_title(f"{title or 'Memory at its peak'} · {clocks}", loc="left", fontsize=11)
    axes.set_xlabel(f"bytes of the fullest rank ({unit})")
    axes.set_xlim(0, max(1.14 * highest, 1.06 * (limit or 0)) / unit_bytes)
    axes.set_yticks(range(len(held)), list(held))
    lines = textwrap.wrap(label, max(7 * len(held), 12))
    axes.set_ylabel("\n".join(lines))
    axes.set_ylim(len(held) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if limit is not None:
        axes.axvline(limit / unit_bytes, color=palette.CAPACITY, linewidth=1.6, linestyle="--")
        above = axes.get_xaxis_transform()
        axes.text(limit / unit_bytes, 1.01, f"capacity {size(limit)}", transform=above, ha="center", fontsize=_FONT)
    # the layout of the picture is determined when it is drawn: until then the width of the axes is an estimate
    width = 72 * WIDTH - 1.2 * max(map(_points, held)) - 14 * len(lines) - 20
    for place, peak in enumerate(held.values()):
        _bar(axes, place, peak, unit_bytes, limit, width / axes.get_xlim()[1])
    used = [category for category in Category if any(peak[category] for peak in held.values())]
    handles = [Patch(color=palette.MEMORY[category], label=category.value) for category in used]
    picture.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return picture


def _bar(
    axes: Axes, place: int, peak: Mapping[Category, int], unit_bytes: float, limit: float | None, scale: float
) -> None:
    """Draw one bar, with a label in each part that has room for it, and the total and the other parts beside it.

    scale: points per unit of the x axis.
    """
    left, beside = 0.0, []
    for category in Category:
        nbytes = peak[category]
        width = nbytes / unit_bytes
        axes.barh(place, width, _THICKNESS, left, color=palette.MEMORY[category])
        for text in (f"{category.value} {size(nbytes)}", size(nbytes)):
            if _points(text) + _MARGIN <= width * scale:
                colour = palette.TEXT_ON_MEMORY[category]
                axes.text(left + width / 2, place, text, ha="center", va="center", fontsize=_FONT, color=colour)
                break
        else:
            if nbytes >= _LEAST_NAMED * sum(peak.values()):
                beside.append(f"{category.value} {size(nbytes)}")
        left += width
    total = size(sum(peak.values()))
    where: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": _FONT}
    axes.annotate(total, (left, place), (4, 0), fontweight="bold", **where)
    before = _points(total, bold=True) + 12
    end = limit / unit_bytes if limit is not None and limit / unit_bytes > left else axes.get_xlim()[1]
    parts = ", ".join(beside)
    if parts and before + _points(parts) + _MARGIN <= (end - left) * scale:
        axes.annotate(parts, (left, place), (before, 0), color=palette.NOTE, **where)


def _points(text: str, bold: bool = False) -> float:
    """Width of a label in points."""
    if not text:
        return 0.0  # which TextPath refuses
    weight = "bold" if bold else "normal"
    return float(TextPath((0, 0), text, size=_FONT, prop=FontProperties(weight=weight)).get_extents().width)


def _fullest(name: str, trace: Trace) -> dict[Category, int]:
    """Memory by category at the peak of the fullest rank."""
    rank = max(range(trace.world_size), key=trace.peak_memory)
    if not trace.peak_memory(rank):
        raise ValueError(f"traces must have memory in them, got none in {name!r}")
    return trace.peak_by_category(rank)


def _describe(held: Mapping[str, Mapping[Category, int]], label: str, title: str, capacity: float | None) -> str:
    runs = [
        f"{name}: {size(sum(peak.values()))}, of it {', '.join(f'{c.value} {size(n)}' for c, n in peak.items() if n)}"
        for name, peak in held.items()
    ]
    limit = f" The capacity is {size(capacity)}." if capacity is not None else ""
    return f"{title or 'Memory at its peak'}, by category, over {label}. {'; '.join(runs)}.{limit}"
