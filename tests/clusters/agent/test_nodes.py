"""One job over several agents is one `Run`, however it ends."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from agents import Agents, agents
from announcing import When
from clocks import ManualClock
from forkservers import environment
from waiting import BROKEN_SECONDS, wait_until

from labkit import Job
from labkit.clusters import State
from labkit.clusters.agent import LaunchPlan, Nodes, NodesLost
from labkit.clusters.agent.node import NodeAgent
from labkit.clusters.local.rank import ENTRY
from labkit.linux.processes import descendants

_numbers = itertools.count()


@pytest.fixture(scope="module")
def pair() -> Iterator[Agents]:
    """Nodes have as long to end as they need."""
    with agents(2, clock=ManualClock()) as started:
        yield started


def plan(started: Agents, source: str, **options: Any) -> LaunchPlan:
    ready = started.nodes.wait_until_ready(BROKEN_SECONDS)
    job = Job(source=source, filename="Cell In[1]")
    store: dict[str, Any] = {"master_port": ready[0].port, "secret": ready[0].secret}
    return LaunchPlan(f"run{next(_numbers)}", ENTRY, job, nnodes=2, nproc_per_node=2, **store, **options)


SUM = """\
import os, torch, torch.distributed as dist
dist.init_process_group()
x = torch.ones(3) * dist.get_rank()
dist.all_reduce(x)
print("node", os.environ["GROUP_RANK"], "local rank", os.environ["LOCAL_RANK"], flush=True)
x
"""


def test_ranks_of_two_nodes_compute_together(pair: Agents) -> None:
    printed: list[tuple[int, str]] = []
    states: list[State] = []
    run = pair.nodes.run(plan(pair, SUM), lambda rank, stream, text: printed.append((rank, text)), states.append)
    assert run.raise_if_failed().values[3].tolist() == [6, 6, 6]
    assert sorted(printed) == [(rank, f"node {rank // 2} local rank {rank % 2}\n") for rank in range(4)]
    assert run.trace.ranks_per_machine == 2
    assert len(run.trace.collectives()) >= 4 and {e.rank for e in run.trace.events} == {0, 1, 2, 3}
    # one clock for all nodes: shared collectives overlap
    last = [
        max(e.start for e in run.trace.events if e.rank == rank and e.operation == "all_reduce") for rank in range(4)
    ]
    assert max(last) < min(e.end for e in run.trace.events if e.start in last)
    assert states[0] == State("running") and states[-1] == State("running", ended=4)


def test_a_node_that_fails_stops_the_other(pair: Agents) -> None:
    source = SUM + "if dist.get_rank() == 3:\n    raise ValueError('no data')\nimport time\ntime.sleep(600)"
    run = pair.nodes.run(plan(pair, source))
    assert run.first_failure is not None and run.first_failure.rank == 3
    assert "ValueError on rank 3 at Cell In[1], line 8: no data" in run.diagnosis()
    assert "ranks 0-2 stopped because of it" in run.diagnosis()
    assert run.ranks[0].output == "node 0 local rank 0\n"


def test_a_time_out_says_where_every_rank_was(pair: Agents) -> None:
    # no process group: ranks come to this line soon, also on a busy machine
    clock = ManualClock()
    asked = plan(pair, "print('waits', flush=True) or __import__('time').sleep(600)", timeout=1, clock=clock)
    run = pair.nodes.run(asked, When(lambda: clock.advance(1.0), 4).on_output)
    assert run.stopped == "timeout after 1 s"
    assert [result.error.where for result in run.ranks if result.error] == ["Cell In[1], line 1"] * 4


def test_an_interrupt_leaves_agents_that_serve_on(pair: Agents) -> None:

    def interrupt(rank: int, stream: str, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.nodes.run(plan(pair, SUM + "import time\ntime.sleep(600)"), interrupt)
    # the forkserver alone
    wait_until(lambda: [len(descendants(agent.pid)) for agent in pair.processes] == [1, 1])
    assert pair.nodes.run(plan(pair, SUM)).ok, "and late lines of the run before do no harm"


def test_a_node_that_is_lost_is_named_with_its_ranks() -> None:
    with agents(2) as started:

        def kill(rank: int, stream: str, text: str) -> None:
            started.processes[1].kill()

        run = started.nodes.run(plan(started, SUM + "import time\ntime.sleep(600)"), kill)
        assert run.stopped == "node1 with ranks 2-3 was lost: its agent ended with exit code -9"
        assert not run.ok
        with pytest.raises(NodesLost, match="node1 was lost before the job began"):
            started.nodes.wait_until_ready(BROKEN_SECONDS)


def test_an_agent_ends_when_its_client_is_silent() -> None:
    with agents(1, silence=0.001) as started:
        wait_until(lambda: started.processes[0].poll() is not None)
        assert started.processes[0].returncode == 0


def test_an_agent_serves_as_long_as_its_client_says_something(tmp_path: Path) -> None:
    clock = ManualClock()
    reading, writing = os.pipe()
    with (tmp_path / "lines").open("w") as out:
        before = set(descendants(os.getpid()))
        agent = NodeAgent(0, 1, out, clock=clock)
        below = set(descendants(os.getpid())) - before
        assert below, "its forkserver"
        thread = threading.Thread(target=agent.serve, args=(reading, 1.0), daemon=True)
        thread.start()
        for _ in range(3):
            clock.advance(0.6)
            wait_until(lambda: clock.seen or not thread.is_alive())
            os.write(writing, b"\n")
            clock.advance(0.0)
            wait_until(lambda: clock.seen or not thread.is_alive())  # and with it the line
        assert thread.is_alive()
        clock.advance(1.0)
        thread.join()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in below))
    for end in (reading, writing):
        os.close(end)


def alone(request: Path) -> list[str]:
    """Return the command of a job's only node, without a client connection."""
    options = ["--node", "0", "--nnodes", "1", "--request", str(request)]
    return [sys.executable, "-P", "-m", "labkit.clusters.agent", *options]


def test_an_agent_runs_what_a_file_asks_for(tmp_path: Path) -> None:
    request = tmp_path / "plan"
    source = "import os\nprint('hello', flush=True)\nint(os.environ['WORLD_SIZE'])"
    asked = LaunchPlan("once", ENTRY, Job(source=source), nnodes=1, nproc_per_node=2)
    request.write_bytes(pickle.dumps(asked))
    log = subprocess.run(alone(request), stdout=subprocess.PIPE, text=True, check=True).stdout
    nodes = Nodes(["pod"])
    whole = log.splitlines(keepends=True)
    # a reader that lost its connection resumes further up, and something else has printed into the log
    for line in [*whole[:3], "Warning: something\n", *whole[1:]]:
        nodes.feed(0, line)
    run = nodes.run(asked)
    assert run.raise_if_failed().values == [2, 2]
    assert run.ranks[1].output == "hello\n"


def test_sigterm_ends_what_a_file_asked_for_and_tells_where_it_was(tmp_path: Path) -> None:
    request, begun = tmp_path / "plan", tmp_path / "begun"
    source = f"import pathlib, time\nprint('on', flush=True)\npathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    asked = LaunchPlan("once", ENTRY, Job(source=source), 1, 1, clock=ManualClock())
    request.write_bytes(pickle.dumps(asked))
    agent = subprocess.Popen(alone(request), stdout=subprocess.PIPE, text=True, env=environment())
    assert agent.stdout is not None
    nodes = Nodes(["pod"])

    for line in agent.stdout:
        nodes.feed(0, line)
        if '"frames"' in line:
            break
    wait_until(begun.exists)
    os.kill(agent.pid, signal.SIGTERM)
    for line in agent.stdout:
        nodes.feed(0, line)
    assert agent.wait() == 0
    run = nodes.run(asked)
    assert not run.ok and run.ranks[0].error is not None and run.ranks[0].error.where == "<cell>, line 3"
