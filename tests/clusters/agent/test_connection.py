"""Live ranks on several nodes look to their client like those of one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from agents import Agents, agents
from announcing import When
from clocks import MOMENT, SLOWLY, LateClock, ManualClock
from waiting import BROKEN_SECONDS, wait_until

from labkit import Job, Run
from labkit.clusters import InvalidJob, OnState, State
from labkit.clusters.agent import LaunchPlan, NodesConnection, NodesLost, open_connection
from labkit.clusters.live import Interrupted, LiveRanks
from labkit.clusters.live import rank as live_rank
from labkit.clusters.live.conversation import GRACE_SECONDS
from labkit.clusters.live.supervisor import LiveSupervisor
from labkit.clusters.local import rank as local_rank
from labkit.linux.clock import Clock

SETUP = """\
import os, time, torch, torch.distributed as dist; from announcing import announce_waits
dist.init_process_group()
rank = dist.get_rank()
x = torch.ones(2)
dist.all_reduce(x)
x
"""
TOGETHER = "y = torch.ones(1)\ndist.all_reduce(y)\ny.item()"


class Cluster:
    """Two nodes of two ranks."""

    def __init__(self, started: Agents) -> None:
        self.nodes = started.nodes
        self.silence: Clock = ManualClock()
        """By which ranks are silent."""
        self.ready = self.nodes.wait_until_ready(BROKEN_SECONDS)
        self.line: NodesConnection | None = None

    def plan(self, job: Job, **options: Any) -> LaunchPlan:
        return LaunchPlan(
            os.urandom(8).hex(),
            job=job,
            nnodes=2,
            nproc_per_node=2,
            master_port=self.ready[0].port,
            secret=self.ready[0].secret,
            clock=self.silence,
            **options,
        )

    def keep(self, job: Job, on_state: OnState | None = None) -> tuple[NodesConnection, Sequence[Sequence[int]]]:
        asked = self.plan(job, entry=live_rank.ENTRY, supervisor=LiveSupervisor, commands=True)
        self.line = open_connection(self.nodes, asked)
        return self.line, [[0], [1], [2], [3]]


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with agents(2, clock=ManualClock()) as started:
        yield Cluster(started)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def silence(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> LateClock:
    clock = LateClock(SLOWLY)
    monkeypatch.setattr(pair, "silence", clock)
    return clock


@pytest.fixture
def live(pair: Cluster, silence: LateClock, clock: ManualClock) -> Iterator[LiveRanks]:
    ranks = LiveRanks(pair, Job(source=""), clock=clock)
    yield ranks
    ranks.close()


def run_on(
    live: LiveRanks, source: str, ranks: list[int] | None = None, when: When | None = None, **options: Any
) -> Run:
    on_output, on_state = (None, None) if when is None else (when.on_output, when.on_state)
    run, _ = live.run(Job(source=source, filename="Cell In[7]", **options), ranks, on_output, on_state)
    return run


def test_cells_build_on_each_other_on_all_nodes_or_some(live: LiveRanks, pair: Cluster) -> None:
    first = run_on(live, SETUP).raise_if_failed()
    assert all(torch.equal(value, torch.full((2,), 4.0)) for value in first.values)
    reduced = [event for event in first.trace.events if event.operation == "all_reduce"]
    assert sorted(event.rank for event in reduced) == [0, 1, 2, 3]
    # one clock for all nodes: shared collectives overlap
    assert max(event.start for event in reduced) < min(event.end for event in reduced) + 0.05
    assert run_on(live, "print('here', rank)\nx += rank\nx[0].item()", [1, 2]).values == [5.0, 6.0]
    assert run_on(live, "dist.all_reduce(x)\nx[0].item(), os.environ['GROUP_RANK']").values == [
        *[(19.0, "0")] * 2,
        *[(19.0, "1")] * 2,
    ]
    # another run on the same nodes is independent
    other = pair.nodes.run(pair.plan(Job(source=SETUP), entry=local_rank.ENTRY))
    assert other.raise_if_failed().values[3].tolist() == [4.0, 4.0]
    live.push({"batch": torch.arange(1_000_000)})
    assert [value.sum().item() for value in live.pull(["batch"])["batch"].values()] == [499999500000] * 4
    assert run_on(live, TOGETHER).values == [4.0] * 4


def test_an_error_an_interrupt_and_a_hang_keep_what_ranks_hold(
    live: LiveRanks, clock: ManualClock, silence: LateClock
) -> None:
    run_on(live, SETUP).raise_if_failed()
    source = "z = 5; announce_waits()\nif rank == 2:\n    raise ValueError('no data')\ndist.all_reduce(x)"
    failed = run_on(live, source, when=When(lambda: clock.advance(GRACE_SECONDS), 3, ended=1))
    assert failed.first_failure is not None and failed.first_failure.rank == 2
    assert "ValueError on rank 2 at Cell In[7], line 3: no data" in failed.diagnosis()
    assert run_on(live, TOGETHER).values == [4.0] * 4

    def interrupt(state: State) -> None:
        if state.phase == "hanging":  # all have come to the line at which they wait
            os.kill(os.getpid(), 2)

    waiting = "if rank == 3:\n    print('waits'); time.sleep(600)\ndist.barrier()"
    job = Job(source=waiting, filename="Cell In[7]", hang_timeout=MOMENT, on_hang="wait")
    with pytest.raises(Interrupted) as caught:
        live.run(job, on_output=When(silence.start, 4).on_output, on_state=interrupt)
    silence.stop()
    wheres = [result.error.where for result in caught.value.run.ranks if result.error]
    assert wheres == ["Cell In[7], line 3"] * 3 + ["Cell In[7], line 2"]

    # no rank of the second node takes part, so it does not matter for the hang
    receives = "if rank == 0:\n    dist.recv(x, 1)\nelse:\n    dist.recv(x, 0)"
    hung = run_on(live, receives, [0, 1], When(silence.start, 2), hang_timeout=MOMENT)
    assert hung.stopped == "hang: no output and no progress for 0.0002 s"
    silence.stop()
    hung = run_on(live, waiting, when=When(silence.start, 4), hang_timeout=MOMENT)
    assert hung.stopped == "hang: no output and no progress for 0.0002 s"
    silence.stop()
    assert len(hung.statuses) == 4
    assert run_on(live, TOGETHER + "\nz").values == [5] * 4


def test_ranks_that_die_and_nodes_that_are_lost_are_told_apart() -> None:
    with agents(2, clock=ManualClock()) as started:
        cluster = Cluster(started)
        live = LiveRanks(cluster, Job(source=""), clock=ManualClock())
        run_on(live, SETUP).raise_if_failed()
        died = run_on(live, "if rank == 0:\n    os._exit(3)", [0, 1])
        assert not died.ok and "rank 0 ended with exit code 3 in Cell In[7], and what it held is gone" in died.notes[0]
        assert live.alive == [1, 2, 3]

        def kill(rank: int, stream: str, text: str) -> None:
            started.processes[1].kill()

        job = Job(source="print('here', flush=True)\nif rank != 1:\n    time.sleep(600)", filename="Cell In[8]")
        lost, _ = live.run(job, [1, 2, 3], on_output=kill)
        why = "ended with node1: its agent ended with exit code -9"
        assert lost.stopped == f"ranks 2-3 {why}"
        with pytest.raises(InvalidJob, match=f"rank 2 {why}, and what it held is gone"):
            run_on(live, "1", [2])
        assert run_on(live, "rank, x[0].item()", [1]).values == [(1, 4.0)]
        with pytest.raises(NodesLost, match="node1 was lost before its ranks began: its agent ended"):
            LiveRanks(cluster, Job(source=""))

        # between cells
        started.processes[0].kill()
        wait_until(lambda: not live.alive)
        with pytest.raises(InvalidJob, match="rank 1 ended with node0: its agent ended with exit code -9"):
            run_on(live, "1", [1])
        assert live.obituary.endswith(f"ranks 2-3 {why}")
        live.close()
