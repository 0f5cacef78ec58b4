"""A pipeline's schedule: a lane per rank, a block per forward and backward, labelled with its microbatch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.plots import palette
from labkit.plots.picture import Picture, plain, rank_ticks
from labkit.plots.traces.lanes import bars_of
from labkit.trace import Kind
from labkit.units import count, time_unit

Row = tuple[float, int, str, int, int]
"""Start time, rank, "forward" or "backward", microbatch, chunk."""
COLOUR = {"forward": palette.KIND[Kind.COMPUTE], "backward": palette.SERIES[5]}
_TEXT = {"forward": palette.LIGHT_TEXT, "backward": palette.DARK_TEXT}
_HEIGHT = 0.8
_NARROWEST = 0.011
"""Minimum block width per character of a label, as a share of the picture's width."""


def pipeline(
    actions: Sequence[Row], seconds: Sequence[float] | None = None, title: str = "", at: float | None = None
) -> Picture:
    """Draw the work of each rank of a pipeline over time; grey is the bubble. On the right: most activations kept.

    actions: those of a schedule, one slot each; or those of a run, with start times in seconds and `seconds`, the
    duration of each. at: draw what has begun by then, in slots or seconds from the beginning, the rest pale, and the
    activations kept at that moment. With several chunks labels name the chunk: 3b is microbatch 3 in the rank's second
    stage. Raises `ValueError` if there is no action, or if `seconds` differs in length.
    """
    if not actions or (seconds is not None and len(seconds) != len(actions)):
        given = "no seconds" if seconds is None else f"{len(seconds)} seconds"
        raise ValueError(f"actions must be at least one, with seconds for each, got {len(actions)} and {given}")
    ranks, chunks = 1 + max(row[1] for row in actions), 1 + max(row[4] for row in actions)
    lengths = [1.0] * len(actions) if seconds is None else list(seconds)
    began = min(row[0] for row in actions)
    span = max(row[0] + length for row, length in zip(actions, lengths, strict=True)) - began
    unit, scale = ("slots", 1.0) if seconds is None else time_unit(span)
    bubble = 1 - sum(lengths) / (span * ranks)
    done = [at is None or row[0] - began < at for row in actions]
    begun = [row for row, is_done in zip(actions, done, strict=True) if is_done]
    most = kept(actions, ranks) if at is None else pending(begun, ranks)

    picture = Picture(height=min(0.42 * ranks + 1.4, 6.0))
    microbatches = 1 + max(row[3] for row in actions)
    subject = f"{count(ranks, 'rank')}, {count(microbatches, 'microbatch').replace('chs', 'ches')}"
    picture.alt = (
        f"{title or 'Pipeline'} of {subject}. Share of the ranks' time without work: {bubble:.0%}. "
        f"{f'After {at:g} {unit}: a' if at is not None else 'A'}ctivations kept{' at most' * (at is None)}, by rank: "
        f"{', '.join(map(str, most))}."
    )
    axes = picture.add_subplot()
    axes.set_title(f"{title or 'Pipeline'} · {subject} · bubble {bubble:.0%}", loc="left", fontsize=11)
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("rank")
    axes.set_xlim(0, span / scale)
    axes.set_ylim(ranks - 0.5, -0.5)
    if seconds is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    rank_ticks(axes, ranks)
    plain(axes)
    lanes = [(0.0, span / scale, rank - _HEIGHT / 2) for rank in range(ranks)]
    axes.add_collection(bars_of(lanes, _HEIGHT, palette.IDLE, "idle", -1))
    for op, colour in COLOUR.items():
        for shown_done in (True, False):
            bars = [
                ((row[0] - began) / scale, (row[0] - began + length) / scale, row[1] - _HEIGHT / 2)
                for row, length, is_done in zip(actions, lengths, done, strict=True)
                if row[2] == op and is_done is shown_done
            ]
            blocks = bars_of(bars, _HEIGHT, colour, op, 1)
            blocks.set(edgecolor="white", linewidth=0.6, alpha=None if shown_done else 0.18)
            axes.add_collection(blocks)
    if at is not None:
        axes.axvline(at / scale, color=palette.PATH, linewidth=1.6, zorder=6)
    for row, length, is_done in zip(actions, lengths, done, strict=True):
        label = f"{row[3]}{chr(ord('a') + row[4]) if chunks > 1 else ''}"
        if length / span > _NARROWEST * len(label):
            middle = (row[0] - began + length / 2) / scale
            shown = axes.text(middle, row[1], label, ha="center", va="center", fontsize=7.5, zorder=5)
            shown.set_color(_TEXT[row[2]] if is_done else palette.FAINT)
    beside = axes.get_yaxis_transform()
    for rank, number in enumerate(most):
        axes.text(1.015, rank, str(number), transform=beside, va="center", fontsize=9)
    axes.text(1.015, -0.5, "kept", transform=beside, va="bottom", fontsize=8, color=palette.NOTE)
    legend = [
        *(Patch(color=colour, label=op) for op, colour in COLOUR.items()),
        Patch(color=palette.IDLE, label="idle"),
    ]
    picture.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def kept(actions: Sequence[Row], ranks: int) -> list[int]:
    """For each rank, the maximum number of forwards whose backward is still pending."""
    return [max(accumulate(steps), default=0) for steps in _steps(actions, ranks)]


def pending(actions: Sequence[Row], ranks: int) -> list[int]:
    """For each rank, the number of forwards whose backward is not among `actions`."""
    return [sum(steps) for steps in _steps(actions, ranks)]


def _steps(actions: Sequence[Row], ranks: int) -> list[list[int]]:
    steps: dict[int, list[int]] = defaultdict(list)
    for row in sorted(actions):
        steps[row[1]].append(1 if row[2] == "forward" else -1)
    return [steps[rank] for rank in range(ranks)]
