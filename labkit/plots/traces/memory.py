"""Memory of the ranks over time: areas by category, and a line at the capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.clusters.rank_lists import named_ranks
from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Category, Trace
from labkit.units import byte_unit, count, size, time_unit

MOST_PANELS = 5
_COLUMNS = 1200
"""Number of columns: moments closer than a pixel share one, which shows the fullest of them."""
_LEAST_OF_CAPACITY = 0.15
"""Share of the GPU's memory below which the capacity is given in words instead of a line: the areas would be flat."""

Array = np.ndarray[Any, np.dtype[np.float64]]


def memory(
    trace: Trace, capacity: float | None = None, title: str = "", compared_with: Iterable[Trace] = ()
) -> Picture:
    """Draw `Trace.memory`: one panel for ranks with equal peaks, which shows the first of them.

    capacity: bytes of one GPU's memory, drawn as a line. compared_with: other runs for which the axes are long enough,
    too, so that pictures of all of them have the same scales.
    """
    panels, others = _alike(trace), tuple(compared_with)
    shown = sorted(panels[:MOST_PANELS])
    picture = Picture(height=max(1.25 * len(shown) + 1.4, 2.9), alt=_describe(trace, panels, capacity))
    axes = picture.subplots(max(len(shown), 1), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    picture.suptitle(f"{title or 'Memory'} · {trace.clock} time", fontsize=11, x=0.01, ha="left")
    if not shown:
        axes[0].text(0.5, 0.5, "memory was not counted", transform=axes[0].transAxes, ha="center", va="center")
        axes[0].set_axis_off()
        return picture
    began, ended = _ends(trace)
    longest = max([ended - began, *(end - begin for begin, end in map(_ends, others))])
    unit, unit_seconds = time_unit(longest)
    peak = max(trace.peak_memory(ranks[0]) for ranks in panels)
    peak = max([peak, *(other.peak_memory(rank) for other in others for rank in range(other.world_size))])
    in_reach = capacity is not None and peak >= _LEAST_OF_CAPACITY * capacity
    highest = max(peak, capacity) if capacity is not None and in_reach else peak
    byte_name, unit_bytes = byte_unit(highest)
    used: set[Category] = set()
    for panel, ranks in zip(axes, shown, strict=True):
        edges, held = columns(trace, ranks[0], began, ended)
        layers = {category: held[row] / unit_bytes for row, category in enumerate(Category) if held[row].any()}
        used.update(layers)
        panel.stackplot(
            (edges - began) / unit_seconds,
            [*layers.values()],
            colors=[palette.MEMORY[category] for category in layers],
            step="post",
            linewidth=0,
        )
        who = named_ranks(ranks)
        panel.set_title(f"{who} · peak {size(trace.peak_memory(ranks[0]))}", loc="left", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_ylabel(byte_name)
        if capacity is not None and in_reach:
            panel.axhline(capacity / unit_bytes, color=palette.CAPACITY, linewidth=1.6, linestyle="--")
    axes[0].set_xlim(0, longest / unit_seconds or 1)
    axes[0].set_ylim(0, 1.08 * highest / unit_bytes or 1)
    axes[-1].set_xlabel(f"time ({unit})")
    legend: list[Any] = [Patch(color=palette.MEMORY[c], label=c.value) for c in reversed(Category) if c in used]
    if capacity is not None:
        style = {"color": palette.CAPACITY, "linestyle": "--", "linewidth": 1.6} if in_reach else {"linestyle": ""}
        label = f"capacity {size(capacity)}" + ("" if in_reach else ",\nfar above")
        legend.insert(0, Line2D([], [], label=label, **style))
    if len(panels) > len(shown):
        legend.append(Line2D([], [], linestyle="", label=f"{len(panels) - len(shown)} more panels\nnot shown"))
    picture.legend(handles=legend, loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _ends(trace: Trace) -> tuple[float, float]:
    """First and last moment of a run."""
    began = min([sample.time for sample in trace.memory] + [event.start for event in trace.events], default=0.0)
    return began, max([sample.time for sample in trace.memory] + [event.end for event in trace.events], default=0.0)


def columns(trace: Trace, rank: int, began: float, ended: float) -> tuple[Array, Array]:
    """Return the edges of the time columns, and the memory of `rank` by category (rows) at each column's peak.

    The last column is repeated, so that there are as many values as edges.
    """
    samples = [sample for sample in trace.memory if sample.rank == rank]
    order = {category: row for row, category in enumerate(Category)}
    states = np.zeros((len(samples) + 1, len(order)))
    for number, sample in enumerate(samples, start=1):
        states[number] = states[number - 1]
        states[number, order[sample.category]] = sample.nbytes
    totals = states.sum(axis=1)
    edges = np.linspace(began, ended, _COLUMNS + 1)
    # the state before the first sample counts as a sample at the beginning
    first_of = np.searchsorted([sample.time for sample in samples], edges, side="left")
    held = np.zeros((len(order), _COLUMNS + 1))
    for column in range(_COLUMNS):
        last = first_of[column + 1] if column + 1 < _COLUMNS else len(samples)
        # a column covers its own samples, and the state at its beginning
        fullest = first_of[column] + int(np.argmax(totals[first_of[column] : last + 1]))
        held[:, column] = states[fullest]
    held[:, -1] = held[:, -2]
    return edges, held


def _alike(trace: Trace) -> list[list[int]]:
    """Group ranks with equal peaks, highest peaks first. Ranks that held nothing are left out."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(trace.world_size):
        if trace.peak_memory(rank):
            groups.setdefault(tuple(trace.peak_by_category(rank).values()), []).append(rank)
    return [groups[key] for key in sorted(groups, key=sum, reverse=True)]


def _describe(trace: Trace, panels: list[list[int]], capacity: float | None) -> str:
    text = f"Memory of {count(trace.world_size, 'rank')} over time by category, {trace.clock}. "
    parts = []
    for ranks in panels[:MOST_PANELS]:
        peaks = ", ".join(f"{c.value} {size(n)}" for c, n in trace.peak_by_category(ranks[0]).items() if n)
        who = named_ranks(ranks)
        parts.append(f"{who} hold{'s' * (len(ranks) == 1)} at most {size(trace.peak_memory(ranks[0]))}: {peaks}")
    text += "; ".join(parts or ["Nothing was counted"]) + "."
    return text + (f" The capacity is {size(capacity)}." if capacity is not None else "")
