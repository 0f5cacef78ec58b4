"""Timelines of several runs: one scale and one unit."""

from __future__ import annotations

import pytest

from labkit.plots import timelines
from labkit.trace import Event, Kind, Trace


def run(seconds: float) -> Trace:
    return Trace(1, [Event(0, Kind.COMPUTE, "compute", 1.0, 1.0 + seconds)], "modelled")


def test_the_axes_of_all_are_as_long_as_the_longest_run() -> None:
    long, short = timelines({"long": run(0.016), "short": run(0.0004)})
    assert [picture.axes[0].get_title(loc="left") for picture in (long, short)] == [
        "long · modelled time", "short · modelled time"
    ]  # fmt: skip
    assert long.axes[0].get_xlim() == (0, pytest.approx(16)) and long.axes[0].get_xlabel() == "time (ms)"
    assert short.axes[0].get_xlim() == (0, pytest.approx(16)) and short.axes[0].get_xlabel() == "time (ms)"


def test_a_run_without_events_and_no_runs_at_all() -> None:
    (empty, full) = timelines({"empty": Trace(2), "full": run(2.0)})
    assert empty.axes[0].get_xlim() == full.axes[0].get_xlim() == (0, pytest.approx(2))
    assert timelines({}) == []
