"""What every rank did when: one lane per rank, a bar per event, an arrow per message where there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from labkit.plots import palette
from labkit.plots.picture import Picture, plain, rank_ticks
from labkit.plots.units import count, duration, size, time_unit
from labkit.trace import Event, Kind, Trace
from labkit.trace.messages import messages

MOST_ARROWS = 120
MOST_RANKS_WITH_DETAIL = 16
"""Up to here lanes hold labels and arrows."""
MOST_RANKS_WITH_ROWS = 64
"""Up to here a lane has a row for each kind, so that a send and a receive at the same time are both seen."""
_RESOLUTION = 1500
"""Bars and gaps shorter than this fraction of the time shown would be thinner than a pixel."""


def timeline(trace: Trace, title: str = "") -> Picture:
    """Draw `trace`: time runs to the right, ranks downwards; what is grey, is waiting.

    Bars nearer than a pixel are drawn as one, so that the picture of 256 ranks is as quick as that of 4.
    """
    n, span = trace.world_size, trace.seconds
    began = min((e.start for e in trace.events), default=0.0)
    unit, unit_seconds = time_unit(span)
    word = "Modelled" if trace.clock == "modelled" else "Measured"

    picture = Picture(height=min(max(0.42 * n + 1.3, 2.2), 7.0), alt=_describe(trace))
    axes = picture.add_subplot()
    axes.set_title(f"{title or 'Timeline'} · {word.lower()} time", loc="left", fontsize=11)
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("rank")
    axes.set_xlim(0, span / unit_seconds if span else 1)
    axes.set_ylim(n - 0.5, -0.5)
    rank_ticks(axes, n)
    plain(axes)
    if not trace.events:
        axes.text(0.5, 0.5, "nothing was recorded", transform=axes.transAxes, ha="center", va="center")
        return picture

    lanes = _lanes(trace)
    kinds = [kind for kind in Kind if any(k is kind for _, k in lanes)]
    rows = {kind: _row(i, len(kinds), n) for i, kind in enumerate(kinds)}
    top, height = _row(0, 1, n)
    axes.barh(np.arange(n) + top, span / unit_seconds, height, align="edge", color=palette.IDLE, zorder=0)
    # the first kinds on top: where all kinds share a row, computing hides sending, and sending receiving
    for layer, kind in enumerate(reversed(kinds)):
        top, height = rows[kind]
        bars = [
            ((start - began) / unit_seconds, (end - began) / unit_seconds, rank + top)
            for rank in range(n)
            for start, end in merge(lanes[rank, kind], span / _RESOLUTION)
        ]
        axes.add_collection(
            PolyCollection(
                [[(a, y), (b, y), (b, y + height), (a, y + height)] for a, b, y in bars],
                facecolor=palette.KIND[kind],
                linewidth=0,
                label=kind.value,
                zorder=1 + layer,
            )
        )
    if n <= MOST_RANKS_WITH_DETAIL:
        _arrows(axes, trace, rows, began, unit_seconds)
        _labels(axes, trace, rows, began, unit_seconds)
    legend = [Patch(color=palette.KIND[kind], label=kind.value) for kind in kinds]
    legend.append(Patch(color=palette.IDLE, label="idle"))
    if n > MOST_RANKS_WITH_ROWS and len(kinds) > 1:
        legend.append(Patch(color="none", label="(at the same time: the first of these is seen)"))
    picture.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    return picture


def merge(events: Iterable[Event], least: float) -> list[tuple[float, float]]:
    """Times (start, end) in which `events` ran; gaps under `least` seconds are closed, shorter bars lengthened."""
    merged: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda e: e.start):
        end = max(event.end, event.start + least)
        if merged and event.start - merged[-1][1] < least:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((event.start, end))
    return merged


def _row(index: int, count: int, ranks: int) -> tuple[float, float]:
    """Offset from the lane's middle, and height, of one of `count` rows of a lane; thin lanes have one for all."""
    if ranks > MOST_RANKS_WITH_ROWS:
        return -0.5, 1.0
    return -0.4 + 0.8 * index / count, 0.8 / count


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


def _labels(axes: Axes, trace: Trace, rows: dict[Kind, tuple[float, float]], began: float, unit: float) -> None:
    """What each long bar is, where the text fits into it."""
    width = axes.get_xlim()[1]
    for event in trace.events:
        text = event.operation if event.kind is Kind.COMPUTE else f"{event.operation} {size(event.nbytes)}"
        start, end = (event.start - began) / unit, (event.end - began) / unit
        top, height = rows[event.kind]
        if end - start > width * 0.014 * len(text) and height > 0.25:
            colour = palette.KIND[event.kind]
            shown = axes.text(
                (start + end) / 2, event.rank + top + height / 2, text, ha="center", va="center", fontsize=7
            )
            shown.set(color=palette.TEXT_ON[event.kind], zorder=9)
            shown.set_path_effects([withStroke(linewidth=2.5, foreground=colour)])  # arrows pass behind


def _describe(trace: Trace) -> str:
    """The picture in words: how long, and which share of the ranks' time went where."""
    if not trace.events:
        return f"Timeline of {count(trace.world_size, 'rank')}, empty. Nothing was recorded."
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
        f"Timeline of {count(trace.world_size, 'rank')}, {trace.clock}. "
        f"{duration(trace.seconds)} from first to last event; shares of the ranks' time: {', '.join(shares)}."
    )


def _lanes(trace: Trace) -> defaultdict[tuple[int, Kind], list[Event]]:
    """The events by rank and kind, in one pass: a ring of 256 ranks has 261,120."""
    lanes: defaultdict[tuple[int, Kind], list[Event]] = defaultdict(list)
    for event in trace.events:
        lanes[event.rank, event.kind].append(event)
    return lanes


def _busy(events: Iterable[Event]) -> float:
    """Seconds in which any of `events` ran."""
    return sum(end - start for start, end in merge(events, 0.0))
