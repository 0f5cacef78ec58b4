"""Time limits are measured by the clock given to a forkserver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clocks import ManualClock

from labkit.clusters import Cluster, Job
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.local import local
from labkit.clusters.virtual import RankPool, virtual

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(SECONDS)\n1"


CLOCK = ManualClock()


@pytest.fixture(scope="module")
def forkserver() -> Iterator[ForkServer]:
    forkserver = ForkServer(clock=CLOCK)
    yield forkserver
    forkserver.close()


def on_processes(forkserver: ForkServer) -> Cluster:
    return local(1, forkserver=forkserver)


def on_pooled_ranks(forkserver: ForkServer) -> Cluster:
    return virtual(nnodes=1, nproc_per_node=1, ranks="processes", forkserver=forkserver, pool=RankPool(forkserver))


@pytest.mark.parametrize("cluster", [on_processes, on_pooled_ranks])
def test_no_time_is_up_while_the_clock_stands(forkserver: ForkServer, cluster: Callable[[ForkServer], Cluster]) -> None:
    run = cluster(forkserver).run(Job(source=SLEEPS.replace("SECONDS", "0.2"), timeout=0.01))
    assert run.ok and run.ranks[0].value == 1


@pytest.mark.parametrize("cluster", [on_processes, on_pooled_ranks])
def test_all_is_stopped_and_says_where_it_was_when_time_is_up(
    forkserver: ForkServer, cluster: Callable[[ForkServer], Cluster]
) -> None:
    def at_output(rank: int, stream: str, text: str) -> None:
        CLOCK.advance(30.0)

    endless = SLEEPS.replace("time.sleep(SECONDS)", "while True: pass")
    run = cluster(forkserver).run(Job(source=endless, timeout=30.0), on_output=at_output)
    assert run.stopped == "timeout after 30 s"
    assert run.ranks[0].error is not None and run.ranks[0].error.type == "Timeout"
