"""Timeline of a run: one lane per rank, a bar per event, an arrow per message if there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from labkit.plots import palette
from labkit.plots.picture import Picture, plain
from labkit.plots.traces.lanes import bars_of
from labkit.plots.traces.rank_lanes import RankLanes
from labkit.trace import Event, Kind, Trace
from labkit.trace.messages import messages
from labkit.units import count, duration, size, time_unit

MOST_ARROWS = 120
MOST_LANES_WITH_DETAIL = 16
"""Maximum number of lanes with labels and arrows."""
_RESOLUTION = 1000
"""Bars and gaps shorter than 1/_RESOLUTION of the time shown would be thinner than a pixel."""


def timeline(trace: Trace, title: str = "", *, at_least: float = 0.0) -> Picture:
    """Draw `trace`: time runs to the right, ranks run downwards; grey is waiting.

    A measured timeline begins when the ranks' first process group is complete; the label of its axis says so. Of many
    ranks a sample is shown. Bars closer than a pixel are merged.

    at_least: minimum length of the time axis, in seconds.
    """
    whole, trace = trace, shown(trace)
    ranks = RankLanes.of(trace)
    n, span = len(ranks.ranks), trace.seconds
    began, length = _began(trace), max(span, at_least)
    unit, unit_seconds = time_unit(length)
    left_out = f"the first {duration(began - _began(whole))}, up to init_process_group, are not shown"
    is_cut = len(trace.events) < len(whole.events)

    picture = Picture(height=min(max(0.42 * n + 1.3, 2.2), 7.0), alt=describe(trace))
    picture.trace, picture.title = whole, title
    picture.alt += (
        f" Not all ranks are shown: {ranks.chosen}." * bool(ranks.chosen) + f" {left_out.capitalize()}." * is_cut
    )
    axes = picture.add_subplot()
    axes.set_title(heading(trace, title), loc="left", fontsize=11)
    axes.set_xlabel(f"time ({unit})" + f"; {left_out}" * is_cut)
    axes.set_xlim(0, length / unit_seconds if length else 1)
    ranks.draw(axes)
    plain(axes)
    if not trace.events:
        axes.text(0.5, 0.5, "nothing was recorded", transform=axes.transAxes, ha="center", va="center")
        return picture

    lanes = _lanes(trace)
    kinds = [kind for kind in Kind if any(k is kind for _, k in lanes)]
    rows = _rows(kinds)
    top, height = _rows(kinds[:1])[kinds[0]]
    lane = [(0.0, span / unit_seconds, place + top) for place in range(n)]
    axes.add_collection(bars_of(lane, height, palette.IDLE, "idle", layer=-1))
    for layer, kind in enumerate(reversed(kinds)):
        top, height = rows[kind]
        bars = [
            ((start - began) / unit_seconds, (end - began) / unit_seconds, place + top)
            for place, rank in enumerate(ranks.ranks)
            for start, end in merge(lanes[rank, kind], length / _RESOLUTION)
        ]
        axes.add_collection(bars_of(bars, height, palette.KIND[kind], kind.value, layer))
    if n <= MOST_LANES_WITH_DETAIL:
        if not ranks.chosen:
            _arrows(axes, trace, rows, began, unit_seconds)
        _labels(axes, trace, ranks, rows, began, unit_seconds)
    legend = [Patch(color=palette.KIND[kind], label=kind.value) for kind in kinds]
    legend.append(Patch(color=palette.IDLE, label="idle"))
    picture.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    return picture


def merge(events: Iterable[Event], least: float) -> list[tuple[float, float]]:
    """Intervals (start, end) in which `events` ran; gaps below `least` seconds are closed, shorter bars lengthened."""
    merged: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda e: e.start):
        end = max(event.end, event.start + least)
        if merged and event.start - merged[-1][1] < least:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((event.start, end))
    return merged


def _rows(kinds: Sequence[Kind]) -> dict[Kind, tuple[float, float]]:
    """Row of each kind in a lane, so that a simultaneous send and receive are both visible: offset from the lane's
    middle, and height.
    """
    return {kind: (-0.4 + 0.8 * i / len(kinds), 0.8 / len(kinds)) for i, kind in enumerate(kinds)}


def shown(trace: Trace) -> Trace:
    """The part that a still picture shows: measured ranks begin by importing modules and finding each other."""
    if trace.clock == "modelled":
        return trace
    begun = trace.without_start_up()
    return begun if begun.events else trace


def _began(trace: Trace) -> float:
    return min((event.start for event in trace.events), default=0.0)


def heading(trace: Trace, title: str = "") -> str:
    """Format the heading, such as `Timeline · modelled time`."""
    return f"{title or 'Timeline'} · {trace.clock} time"


def _arrows(axes: Axes, trace: Trace, rows: dict[Kind, tuple[float, float]], began: float, unit: float) -> None:
    pairs = list(messages(trace))
    if len(pairs) > MOST_ARROWS:
        return
    style = {"arrowstyle": "-|>", "color": palette.MESSAGE, "lw": 0.7, "alpha": 0.75, "shrinkA": 0, "shrinkB": 0}
    for sent, received in pairs:
        leaves = sent.rank + rows[Kind.SEND][0] + rows[Kind.SEND][1] / 2
        arrives = received.rank + rows[Kind.RECEIVE][0] + rows[Kind.RECEIVE][1] / 2
        axes.annotate(
            "",
            xy=((received.end - began) / unit, arrives),
            xytext=((sent.start - began) / unit, leaves),
            arrowprops=style,
            zorder=8,
        )


def _labels(
    axes: Axes, trace: Trace, ranks: RankLanes, rows: dict[Kind, tuple[float, float]], began: float, unit: float
) -> None:
    """Label bars that are long enough for the text."""
    places = {rank: place for place, rank in enumerate(ranks.ranks)}
    width = axes.get_xlim()[1]
    taken: dict[tuple[int, Kind], float] = {}  # end of the row's last label
    for event in trace.events:
        if event.rank not in places:
            continue
        text = event.operation if event.kind is Kind.COMPUTE else f"{event.operation} {size(event.nbytes)}"
        start, end = (event.start - began) / unit, (event.end - began) / unit
        top, height = rows[event.kind]
        long, middle = width * 0.014 * len(text), (start + end) / 2
        free = middle - long / 2 >= taken.get((event.rank, event.kind), 0.0)
        if end - start > long and height > 0.25 and free:
            taken[event.rank, event.kind] = middle + long / 2
            colour = palette.KIND[event.kind]
            label = axes.text(middle, places[event.rank] + top + height / 2, text, ha="center", va="center", fontsize=7)
            label.set(color=palette.TEXT_ON[event.kind], zorder=9)
            label.set_path_effects([withStroke(linewidth=2.5, foreground=colour)])  # arrows pass behind


def describe(trace: Trace) -> str:
    """Describe the picture in words: its length, and how the ranks' time divides."""
    if not trace.events:
        return f"Timeline of {_who(trace)}, empty. Nothing was recorded."
    lanes = _lanes(trace)
    total = trace.seconds * trace.world_size or 1.0
    shares = []
    for kind in Kind:
        busy = sum(_busy(lanes[rank, kind]) for rank in range(trace.world_size))
        if busy:
            shares.append(f"{kind.value} {busy / total:.0%}")
    working = sum(_busy([e for kind in Kind for e in lanes[rank, kind]]) for rank in range(trace.world_size))
    shares.append(f"idle {max(0.0, 1 - working / total):.0%}")
    return (
        f"Timeline of {_who(trace)}, {trace.clock}. "
        f"{duration(trace.seconds)} from first to last event; shares of the ranks' time: {', '.join(shares)}."
    )


def _who(trace: Trace) -> str:
    """`4 ranks`, `64 ranks on 8 machines`."""
    ranks = count(trace.world_size, "rank")
    return f"{ranks} on {trace.machines} machines" if trace.machines > 1 else ranks


def _lanes(trace: Trace) -> defaultdict[tuple[int, Kind], list[Event]]:
    """Group events by rank and kind in one pass: a ring of 256 ranks has 261,120."""
    lanes: defaultdict[tuple[int, Kind], list[Event]] = defaultdict(list)
    for event in trace.events:
        lanes[event.rank, event.kind].append(event)
    return lanes


def _busy(events: Iterable[Event]) -> float:
    """Total seconds in which any of `events` ran."""
    return sum(end - start for start, end in merge(events, 0.0))
