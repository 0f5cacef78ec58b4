"""One forkserver with torch imported for the live ranks of each module, which may lose it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clocks import SLOWLY, LateClock, ManualClock
from forkservers import forkserver_that_reads_clocks

from labkit.clusters.forkserver.client import ForkServer


@pytest.fixture(scope="module")
def warm() -> Iterator[ForkServer]:
    with forkserver_that_reads_clocks() as started:
        yield started


@pytest.fixture
def silence() -> LateClock:
    """The clock by which ranks are silent."""
    return LateClock(SLOWLY)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of all other limits."""
    return ManualClock()


@pytest.fixture
def forkserver(warm: ForkServer, silence: LateClock, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ForkServer:
    monkeypatch.setattr(warm, "clock", clock)
    monkeypatch.setattr(warm, "supervisor_clock", silence)
    return warm
