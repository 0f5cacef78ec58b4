"""Collectives of one rank, by level: which step of which chunk is under way inside its node, and between the nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.patches import Patch

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Kind, Trace
from labkit.units import count, duration, time_unit

_SHORT = {"reduce_scatter": "add", "all_gather": "share", "all_reduce": "cross"}
_LANES = ("inside the node", "between nodes")


class _Bar(NamedTuple):
    lane: int
    start: float
    end: float
    text: str


def step_lanes(traces: Mapping[str, Trace], node: Sequence[int], rank: int) -> Picture:
    """Draw the collectives of `rank` in each run, on one time axis: those inside its node, and those between nodes.

    node: the ranks of its node. A group runs its collectives one after the other, so one begins when all members have
    called it and the one before it has ended. Each is named by its step, `add`, `cross` or `share`, and numbered
    within it: the chunk. Raises `ValueError` without runs, and if a run has no collectives of `rank`.
    """
    bars = {name: _bars(trace, frozenset(node), rank) for name, trace in traces.items()}
    if not bars or not all(bars.values()):
        raise ValueError(f"each run must have collectives of rank {rank}, got {', '.join(bars) or 'no runs'}")
    longest = max(bar.end for each in bars.values() for bar in each)
    unit, seconds = time_unit(longest)
    picture = Picture(height=1.15 * len(bars) + 0.9, alt=_describe(bars, rank))
    panels = picture.subplots(len(bars), 1, sharex=True, squeeze=False)[:, 0]
    colours = palette.KIND[Kind.COLLECTIVE], palette.KIND[Kind.SEND]
    texts = palette.TEXT_ON[Kind.COLLECTIVE], palette.TEXT_ON[Kind.SEND]
    for axes, (name, each) in zip(panels, bars.items(), strict=True):
        axes.set_title(f"{name}: {duration(max(bar.end for bar in each))}", loc="left", fontsize=10)
        axes.set_ylim(1.5, -0.5)
        axes.set_yticks((0, 1), _LANES)
        axes.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        for bar in each:
            width = (bar.end - bar.start) / seconds
            axes.barh(
                bar.lane, width, left=bar.start / seconds, height=0.72, color=colours[bar.lane], edgecolor="white"
            )
            if bar.end - bar.start > 0.062 * longest:
                middle = bar.start / seconds + width / 2
                axes.text(middle, bar.lane, bar.text, ha="center", va="center", fontsize=7.5, color=texts[bar.lane])
    panels[-1].set_xlabel(f"modelled time ({unit})" if _modelled(traces) else f"time ({unit})")
    panels[-1].set_xlim(0, 1.01 * longest / seconds)
    legend = [Patch(color=colour, label=label) for colour, label in zip(colours, _LANES, strict=True)]
    picture.legend(handles=legend, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return picture


def _bars(trace: Trace, node: frozenset[int], rank: int) -> list[_Bar]:
    calls = [event for event in trace.collectives(rank) if not event.operation.endswith("barrier")]
    begin = min((event.start for event in calls), default=0.0)
    called: dict[tuple[str, int], float] = {}
    for event in trace.collectives():
        key = event.group, event.sequence
        called[key] = max(event.start, called.get(key, event.start))
    free_at: dict[str, float] = {}
    number: dict[str, int] = defaultdict(int)
    bars = []
    for event in sorted(calls, key=lambda event: (event.group, event.sequence)):
        start = max(called[event.group, event.sequence], free_at.get(event.group, 0.0))
        free_at[event.group] = event.end
        inside = set(trace.members(event)) <= node
        step = next((short for long, short in _SHORT.items() if event.operation.startswith(long)), event.operation)
        bars.append(_Bar(0 if inside else 1, start - begin, event.end - begin, f"{step} {number[step]}"))
        number[step] += 1
    return bars


def _modelled(traces: Mapping[str, Trace]) -> bool:
    return all(trace.clock == "modelled" for trace in traces.values())


def _describe(bars: Mapping[str, list[_Bar]], rank: int) -> str:
    parts = []
    for name, each in bars.items():
        inside, between = ([bar for bar in each if bar.lane == lane] for lane in (0, 1))
        end = duration(max(bar.end for bar in each))
        parts.append(f"{name}: {count(len(inside), 'collective')} inside, {len(between)} between, done after {end}")
    return f"Collectives of rank {rank} inside its node and between nodes, in {len(bars)} runs. {'. '.join(parts)}."
