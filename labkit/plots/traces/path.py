"""The critical path over the timeline: the events that determined when the run ended, and where the time went."""

from __future__ import annotations

from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.plots.traces.rank_lanes import RankLanes
from labkit.plots.traces.timeline import shown, timeline
from labkit.trace import Trace
from labkit.trace.critical_path import CriticalPath
from labkit.trace.critical_path import critical_path as find
from labkit.units import count, duration, time_unit


def critical_path(trace: Trace, title: str = "") -> Picture:
    """Draw the timeline of `trace` in pale colours, and over it the chain of events that determined its end.

    The line follows the lane of the rank that all others wait for; where it changes lanes, a message or a collective
    made one rank wait for another. It is dotted where nothing was recorded. If only a sample of the ranks is shown, the
    line is in the lane of the nearest one above.
    """
    picture = timeline(trace, title or "Critical path")
    trace = shown(trace)
    path, lanes = find(trace), RankLanes.of(trace)
    picture.alt = _describe(trace, path)
    if not path.steps:
        return picture
    axes = picture.axes[0]
    for text in list(axes.texts):
        text.remove()
    for bars in axes.collections:
        if bars.get_label() != "idle":
            bars.set_alpha(0.45)
    began = path.steps[0].start
    _, unit = time_unit(trace.seconds)
    halo = [Stroke(linewidth=4, foreground="white"), Normal()]
    style = {"color": palette.PATH, "linewidth": 1.8, "solid_capstyle": "butt", "solid_joinstyle": "round"}
    times: list[float] = []
    ranks: list[float] = []
    for step in path.steps:
        times += [(step.start - began) / unit, (step.end - began) / unit]
        ranks += [lanes.lane(step.rank)] * 2
    axes.plot(times, ranks, zorder=20, path_effects=halo, label="critical path", **style)  # type: ignore[arg-type]
    for step in path.steps:
        if step.kind is None:
            gap = [(step.start - began) / unit, (step.end - began) / unit]
            axes.plot(gap, [lanes.lane(step.rank)] * 2, color="white", linewidth=1.2, linestyle=(0, (2, 2)), zorder=21)
    shares = " · ".join(f"{name} {seconds / path.seconds:.0%}" for name, seconds in _parts(path).items() if seconds)
    axes.set_title(shares, loc="right", fontsize=9)
    (old,) = picture.legends
    handles = [*old.legend_handles, Line2D([], [], color=palette.PATH, linewidth=1.8, label="critical path")]
    old.remove()
    picture.legend(
        handles=[handle for handle in handles if handle is not None],
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
    )
    return picture


def _parts(path: CriticalPath) -> dict[str, float]:
    return {"compute": path.compute, "communication": path.communication, "waiting": path.waiting}


def _describe(trace: Trace, path: CriticalPath) -> str:
    text = f"Critical path of {count(trace.world_size, 'rank')}, {trace.clock}. "
    if not path.seconds:
        return text + "Nothing was recorded."
    ranks = {step.rank for step in path.steps}
    parts = [f"{seconds / path.seconds:.0%} {name}" for name, seconds in _parts(path).items() if seconds]
    return text + f"{duration(path.seconds)} over {count(len(ranks), 'rank')}: {', '.join(parts)}."
