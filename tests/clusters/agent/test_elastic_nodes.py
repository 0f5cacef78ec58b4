"""A job over several agents whose ranks are restarted, and which continues with fewer nodes."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agents, agents
from announcing import When
from clocks import MOMENT, SLOWLY, LateClock, ManualClock
from waiting import BROKEN_SECONDS

from labkit import Job, RankFailed, Run
from labkit.clusters import State
from labkit.clusters.agent import LaunchPlan, Nodes
from labkit.clusters.agent.interface import own_address
from labkit.clusters.local.rank import ENTRY

HEAD = """\
import os, signal, time, torch, torch.distributed as dist
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank, n, nnodes = dist.get_rank(), dist.get_world_size(), int(os.environ["GROUP_WORLD_SIZE"])
x = torch.ones(1)
dist.all_reduce(x)
"""
STEPS = """
if n == 4:  # on a slow machine the first start may be without the second node, which then joins
    print("on", flush=True)
while n == 4 or restarts == 0:
    time.sleep(0.05)
    dist.all_reduce(x)
(rank, n, nnodes)
"""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def pair() -> Iterator[Agents]:
    with agents(2) as started:
        yield started


def run(started: Agents, source: str, on_output: Any = None, states: list[State] | None = None, **options: Any) -> Run:
    ready = started.nodes.wait_until_ready(BROKEN_SECONDS)[0]
    timeout, clock = options.pop("timeout", None), options.pop("clock", ManualClock())
    job = Job(source=HEAD + source, filename="Cell In[3]", **options)
    store: dict[str, Any] = {"master_port": ready.port, "secret": ready.secret}
    plan = LaunchPlan(f"elastic{next(_numbers)}", ENTRY, job, 2, 2, **store, timeout=timeout, clock=clock)
    return started.nodes.run(plan, on_output, None if states is None else states.append)


def test_ranks_of_both_nodes_start_again(pair: Agents) -> None:
    states: list[State] = []
    source = """
print("start", flush=True)
dist.barrier()  # the others have printed, too
if rank == 3 and restarts == 0:
    raise ValueError("bad luck")
dist.barrier()
(rank, restarts if rank > 1 else None, x.item(), os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"])
"""
    result = run(pair, source, states=states, max_restarts=2).raise_if_failed()
    # torch's agent of the other node counts no restart when it sees the failed one wait before its own ranks fail
    counted = [None, None, 1, 1]
    assert result.values == [(rank, counted[rank], 4.0, str(rank // 2), str(rank % 2)) for rank in range(4)]
    assert result.notes == ("restarted once after rank 3 failed: ValueError at Cell In[3], line 11",)
    assert [r.output for r in result.ranks] == ["start\n" * 2] * 4
    assert result.trace.world_size == 4 and {event.rank for event in result.trace.events} == {0, 1, 2, 3}
    assert [state.phase for state in states if state.ended == 0] == ["running", "restarting", "running"]


def test_when_every_start_fails_the_last_failure_counts(pair: Agents) -> None:
    source = "if rank == 2:\n    raise ValueError('no data')\ndist.barrier()"
    result = run(pair, source, max_restarts=1)
    with pytest.raises(RankFailed, match=r"ValueError on rank 2 at Cell In\[3\], line 8: no data"):
        result.raise_if_failed()
    assert result.notes == ("restarted once after rank 2 failed: ValueError at Cell In[3], line 8",)
    assert run(pair, "rank", max_restarts=1).raise_if_failed().values == [0, 1, 2, 3], "the agents serve on"


def test_a_cell_may_take_any_node_away(pair: Agents) -> None:
    """A node's own processes, not its agent."""
    kill = "if n == 4 and rank == 0:\n    os.kill(os.getppid(), signal.SIGKILL)"
    result = run(pair, kill + STEPS, min_nnodes=1, max_restarts=2).raise_if_failed()
    assert result.values == [(0, 2, 1), (1, 2, 1)]
    note = result.notes[-1]
    assert note.startswith("restarted once after node") and note.endswith("was lost, with 1 node and 2 ranks")


def test_a_hang_and_a_time_out_name_lines(pair: Agents) -> None:
    late = LateClock(SLOWLY)
    hang = "from announcing import announce_waits; announce_waits()\n"
    hang += "if rank == 0:\n    dist.barrier()\nelse:\n    dist.recv(x, 0)"
    result = run(pair, hang, When(late.start, 4).on_output, max_restarts=1, hang_timeout=MOMENT, clock=late)
    assert result.stopped == "hang: no output and no progress for 0.0002 s"
    assert [r.error and r.error.where for r in result.ranks] == ["Cell In[3], line 9"] + ["Cell In[3], line 11"] * 3
    clock = ManualClock()
    when = When(lambda: clock.advance(1.0), 4)
    result = run(pair, "print('waits'); time.sleep(600)", when.on_output, max_restarts=1, timeout=1, clock=clock)
    assert result.stopped == "timeout after 1 s"
    assert [r.error and r.error.where for r in result.ranks] == ["Cell In[3], line 7"] * 4


def test_an_interrupt_ends_the_ranks_and_leaves_the_agents(pair: Agents) -> None:
    def interrupt(rank: int, stream: str, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(pair, STEPS + "time.sleep(600)", interrupt, max_restarts=1)
    assert run(pair, "rank", max_restarts=1).ok


@pytest.mark.parametrize("node", [0, 1])
def test_a_machine_may_be_lost_but_not_the_first(node: int) -> None:
    with agents(2) as started:

        def kill(rank: int, stream: str, text: str) -> None:
            if rank // 2 == node:
                started.processes[node].kill()

        result = run(started, STEPS, kill, min_nnodes=1, max_restarts=3)
    if node == 1:
        assert result.raise_if_failed().values == [(0, 2, 1), (1, 2, 1)]
        lost = "node1 was lost (its agent ended with exit code -9)"
        assert result.notes[-1] == f"restarted once after {lost}, with 1 node and 2 ranks"
    else:
        assert not result.ok
        assert result.stopped == (
            "node0 was lost: its agent ended with exit code -9; "
            "nodes meet at its store, so the job cannot go on without it"
        )


def test_with_too_few_nodes_the_job_ends() -> None:
    with agents(2) as started:

        def kill(rank: int, stream: str, text: str) -> None:
            if rank // 2 == 1:
                started.processes[1].kill()

        result = run(started, STEPS + "time.sleep(600)", kill, max_restarts=3)
    lost = "node1 was lost (its agent ended with exit code -9)"
    assert result.stopped == f"{lost}: 1 node is left, 2 are needed"
    assert f"{lost}, and this rank with it" in [r.error.message for r in result.ranks if r.error]


def test_an_agent_that_nobody_speaks_to_restarts_ranks(tmp_path: Path) -> None:
    request = tmp_path / "plan"
    job = Job(source=HEAD + "if restarts == 0:\n    os._exit(3)\n(rank, restarts)", max_restarts=1)
    plan = LaunchPlan("once", ENTRY, job, nnodes=1, nproc_per_node=2)
    request.write_bytes(pickle.dumps(plan))
    options = ["--node", "0", "--nnodes", "1", "--request", str(request)]
    command = [sys.executable, "-P", "-m", "labkit.clusters.agent", *options]
    log = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    nodes = Nodes(["pod"])
    for line in log.splitlines():
        nodes.feed(0, line)
    assert nodes.run(plan).raise_if_failed().values == [(0, 1), (1, 1)]


def test_a_machine_knows_its_own_address() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
