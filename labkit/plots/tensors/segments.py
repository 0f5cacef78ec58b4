"""Activation checkpointing: a rank's memory over time for one number of segments, beside the peaks of others."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.plots.traces.memory import columns
from labkit.trace import Category, Trace
from labkit.units import byte_unit, size, time_unit


def segments(traces: Mapping[int, Trace], chosen: int, title: str = "") -> Picture:
    """Draw rank 0's memory over time in `traces[chosen]` and, beside it, its peak in each of `traces`.

    traces: by number of segments; the axes are the same whichever is chosen. Raises ValueError if there is no such run,
    or if a run has no memory accounting.
    """
    if chosen not in traces:
        raise ValueError(f"chosen must be one of {', '.join(map(str, traces))}, got {chosen}")
    peaks = {number: trace.peak_memory(0) for number, trace in traces.items()}
    if not all(peaks.values()):
        raise ValueError("traces must have memory of rank 0: it is counted on virtual ranks")
    unit, unit_bytes = byte_unit(max(peaks.values()))
    picture = Picture(height=3.4, alt=_describe(peaks, chosen, title))
    picture.suptitle(f"{title or 'Memory and segments'} · {traces[chosen].clock}", fontsize=11, x=0.01, ha="left")
    left, right = picture.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [3, 2]})
    used = _over_time(left, traces, chosen, unit_bytes)
    left.set_title(f"{chosen} segment{'s' * (chosen != 1)} · peak {size(peaks[chosen])}", loc="left", fontsize=9.5)
    left.set_ylabel(f"bytes held ({unit})")

    right.set_title("peak of each", loc="left", fontsize=9.5)
    right.plot([*peaks], [peak / unit_bytes for peak in peaks.values()], "--", color=palette.MESSAGE, linewidth=1)
    for number, peak in peaks.items():
        face = palette.CAPACITY if number == chosen else "white"
        right.plot(number, peak / unit_bytes, "o", color=palette.CAPACITY, markerfacecolor=face, zorder=3)
    right.set_xscale("log", base=2)
    right.set_xticks([*peaks], [str(number) for number in peaks])
    right.minorticks_off()
    right.set_xlabel("segments")
    right.set_ylim(0, 1.08 * max(peaks.values()) / unit_bytes)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=palette.MEMORY[category], label=category.value) for category in reversed(used)]
    picture.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return picture


def _over_time(axes: Axes, traces: Mapping[int, Trace], chosen: int, unit_bytes: float) -> list[Category]:
    """Draw areas by category, on an axis that is long enough for every run. Returns the categories that occur."""
    longest = max(_ends(trace)[1] - _ends(trace)[0] for trace in traces.values())
    unit, unit_seconds = time_unit(longest)
    began, ended = _ends(traces[chosen])
    edges, held = columns(traces[chosen], 0, began, ended)
    layers = {category: held[row] / unit_bytes for row, category in enumerate(Category) if held[row].any()}
    axes.stackplot(
        (edges - began) / unit_seconds,
        [*layers.values()],
        colors=[palette.MEMORY[category] for category in layers],
        step="post",
        linewidth=0,
    )
    axes.set_xlim(0, longest / unit_seconds or 1)
    axes.set_xlabel(f"time ({unit})")
    return list(layers)


def _ends(trace: Trace) -> tuple[float, float]:
    times = [sample.time for sample in trace.memory if sample.rank == 0]
    return min(times), max(times)


def _describe(peaks: Mapping[int, int], chosen: int, title: str) -> str:
    listed = ", ".join(f"{size(peak)} in {number}" for number, peak in peaks.items())
    return (
        f"{title or 'Memory and segments'}: what rank 0 holds over time, cut into {chosen} segments, beside the peaks "
        f"of {', '.join(map(str, peaks))}. Peaks: {listed}."
    )
