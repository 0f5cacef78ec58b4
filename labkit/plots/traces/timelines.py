"""Timelines of several runs on one scale, so that lengths can be compared from picture to picture."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.plots.picture import Picture
from labkit.plots.traces.timeline import shown, timeline
from labkit.trace import Trace


def timelines(traces: Mapping[str, Trace]) -> list[Picture]:
    """Draw the timeline of each run, with its key as the title; the time axes of all are as long as the longest run."""
    longest = max((shown(trace).seconds for trace in traces.values()), default=0.0)
    return [timeline(trace, title, at_least=longest) for title, trace in traces.items()]
