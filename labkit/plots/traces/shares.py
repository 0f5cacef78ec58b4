"""Time of each rank: how much communication is hidden behind computing, and how large a pipeline's bubble is."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.plots import palette
from labkit.plots.picture import Picture, plain, rank_ticks
from labkit.plots.traces.lanes import bars_of
from labkit.trace import Kind, Trace
from labkit.trace.busy import RankTime, busy
from labkit.units import count, time_unit

MOST_LANES_WITH_NUMBERS = 32
_COMPUTE = palette.KIND[Kind.COMPUTE]
_COMMUNICATION = palette.KIND[Kind.COLLECTIVE]
_HEIGHT = 0.8


def overlap(trace: Trace, title: str = "") -> Picture:
    """Draw each rank's computing above its communication; communication is hidden where both overlap.

    Communication counts from the moment when all participants have called it; the time before is waiting for a late
    rank.
    """
    times = busy(trace)
    unit, unit_seconds = time_unit(trace.seconds)
    mean = _mean([time.overlap for time in times if time.hidden + time.exposed > 0])
    summary = "no communication" if mean is None else f"{mean:.0%} of communication is hidden"
    picture, axes = _lanes(trace, len(times), f"{title or 'Overlap'} · {summary}", unit)
    picture.alt = f"Overlap of communication with computing on {count(len(times), 'rank')}, {trace.clock}. " + (
        f"Hidden, as a share of communication: {_shares([time.overlap for time in times])}."
    )
    upper, lower = [], []
    for time in times:
        upper.append((0.0, time.compute / unit_seconds, time.rank - _HEIGHT / 2))
        start, end = time.compute - time.hidden, time.compute + time.exposed
        lower.append((start / unit_seconds, end / unit_seconds, float(time.rank)))
    axes.add_collection(bars_of(upper, _HEIGHT / 2, _COMPUTE, "compute", 1))
    axes.add_collection(bars_of(lower, _HEIGHT / 2, _COMMUNICATION, "communication", 1))
    numbers = [f"{time.overlap:.0%}" if time.hidden + time.exposed else "none" for time in times]
    _numbers(axes, numbers, "hidden")
    _legend(picture, {"compute": _COMPUTE, "communication": _COMMUNICATION, "neither": palette.IDLE})
    return picture


def bubbles(trace: Trace, stages: Sequence[Sequence[int]] | None = None, title: str = "") -> Picture:
    """Draw the share of the run that each rank computed; the rest is the bubble.

    stages: the ranks of each pipeline stage; if given, there is a bar per stage, the mean of its ranks.
    Raises `ValueError` for a rank that is not in the trace.
    """
    times = busy(trace)
    for rank in (rank for stage in stages or () for rank in stage):
        if not 0 <= rank < trace.world_size:
            raise ValueError(f"stages name rank {rank}, the trace has ranks 0 to {trace.world_size - 1}")
    lanes = [[time] for time in times] if stages is None else [[times[rank] for rank in stage] for stage in stages]
    bubble = [_mean([time.bubble for time in lane]) or 0.0 for lane in lanes]
    noun = "rank" if stages is None else "stage"
    mean = _mean(bubble) or 0.0
    picture, axes = _lanes(trace, len(lanes), f"{title or 'Bubble'} · {mean:.0%} of the time", "%", noun)
    picture.alt = (
        f"Pipeline bubble of {count(len(lanes), noun)}, {trace.clock}. "
        f"Share of the time without computing: {_shares(bubble)}."
    )
    computing, communicating = [], []
    for number, lane in enumerate(lanes):
        compute, exposed = (_percent(trace, lane, part) for part in ("compute", "exposed"))
        computing.append((0.0, compute, number - _HEIGHT / 2))
        communicating.append((compute, compute + exposed, number - _HEIGHT / 2))
    axes.add_collection(bars_of(computing, _HEIGHT, _COMPUTE, "compute", 1))
    axes.add_collection(bars_of(communicating, _HEIGHT, _COMMUNICATION, "communication", 1))
    _numbers(axes, [f"{share:.0%}" for share in bubble], "bubble")
    _legend(picture, {"compute": _COMPUTE, "communication in the open": _COMMUNICATION, "idle": palette.IDLE})
    return picture


def _lanes(trace: Trace, lanes: int, title: str, unit: str, noun: str = "rank") -> tuple[Picture, Axes]:
    """Draw empty lanes, as long as the run."""
    picture = Picture(height=min(max(0.34 * lanes + 1.5, 2.2), 6.0))
    axes = picture.add_subplot()
    axes.set_title(f"{title} · {trace.clock} time", loc="left", fontsize=11)
    length = 100.0 if unit == "%" else trace.seconds / time_unit(trace.seconds)[1]
    axes.set_xlabel("share of the run (%)" if unit == "%" else f"time ({unit}), added up")
    axes.set_ylabel(noun)
    axes.set_xlim(0, length or 1)
    axes.set_ylim(lanes - 0.5, -0.5)
    rank_ticks(axes, lanes)
    plain(axes)
    background = [(0.0, length, number - _HEIGHT / 2) for number in range(lanes)]
    axes.add_collection(bars_of(background, _HEIGHT, palette.IDLE, "idle", -1))
    return picture, axes


def _numbers(axes: Axes, numbers: Sequence[str], heading: str) -> None:
    """Write a column of numbers to the right of the lanes, if there is room."""
    if len(numbers) > MOST_LANES_WITH_NUMBERS:
        return
    beside = axes.get_yaxis_transform()
    for lane, number in enumerate(numbers):
        axes.text(1.015, lane, number, transform=beside, va="center", fontsize=9)
    axes.text(1.015, -0.5, heading, transform=beside, va="bottom", fontsize=8, color=palette.NOTE)


def _legend(picture: Picture, colours: dict[str, str]) -> None:
    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    picture.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)


def _percent(trace: Trace, lane: Sequence[RankTime], part: str) -> float:
    mean = _mean([getattr(time, part) for time in lane]) or 0.0
    return 100 * mean / (trace.seconds or 1.0)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _shares(values: Sequence[float]) -> str:
    """Format as `0: 12%, 1: 15%`; for many values, as their range."""
    if len(values) > MOST_LANES_WITH_NUMBERS:
        return f"from {min(values):.0%} to {max(values):.0%}, mean {_mean(values) or 0.0:.0%}"
    return ", ".join(f"{number}: {value:.0%}" for number, value in enumerate(values))
