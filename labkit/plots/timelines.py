"""Timelines of several runs on one scale, so that lengths can be compared from picture to picture."""

from __future__ import annotations

import re
from collections.abc import Mapping

from matplotlib.axes import Axes

from labkit.plots.picture import Picture
from labkit.plots.timeline import timeline
from labkit.trace import Trace

_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def timelines(traces: Mapping[str, Trace]) -> list[Picture]:
    """Draw the timeline of each run, with its key as the title; the time axes of all are as long as the longest run."""
    pictures = [timeline(trace, title) for title, trace in traces.items()]
    longest = max((_unit(axes) * axes.get_xlim()[1] for picture in pictures for axes in picture.axes), default=0.0)
    for picture in pictures:
        for axes in picture.axes:
            axes.set_xlim(0, longest / _unit(axes))
    return pictures


def _unit(axes: Axes) -> float:
    """The unit of the time axis, in seconds: the label knows it, whichever part of a trace is shown."""
    found = re.match(r"time \((\w+)\)", axes.get_xlabel())
    assert found
    return _SECONDS[found[1]]
