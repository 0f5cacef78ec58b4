"""Restarted ranks, and nodes that come and go, as seen by a learner of fault tolerance."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import psutil
import pytest
from announcing import When
from clocks import MOMENT, SLOWLY, LateClock, ManualClock
from forkservers import forkserver_that_reads_clocks
from waiting import wait_until

from labkit import InvalidJob, Job, Run, local
from labkit.clusters.cluster import State
from labkit.clusters.forkserver.client import ForkServer

HEAD = """\
import os, signal, time, torch, torch.distributed as dist
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank, n, nnodes = dist.get_rank(), dist.get_world_size(), int(os.environ["GROUP_WORLD_SIZE"])
x = torch.ones(1)
dist.all_reduce(x)
"""
ANNOUNCE = "from announcing import announce_waits; announce_waits()\n"
STEPS = """
for _ in range(30):
    time.sleep(0.05)
    dist.all_reduce(x)
(rank, n, nnodes, restarts)
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[ForkServer]:
    with forkserver_that_reads_clocks() as made:
        yield made


@pytest.fixture
def server(warm: ForkServer, monkeypatch: pytest.MonkeyPatch) -> ForkServer:
    """No time passes for the client and for the supervisors of nodes, unless a test moves it."""
    monkeypatch.setattr(warm, "clock", ManualClock())
    monkeypatch.setattr(warm, "supervisor_clock", ManualClock())
    return warm


@pytest.fixture
def run(server: ForkServer) -> Callable[..., Run]:
    def run(source: str, nodes: int = 1, ranks: int = 2, states: list[State] | None = None, **options: object) -> Run:
        job = Job(source=HEAD + source, filename="Cell In[3]", nnodes=nodes, nproc_per_node=ranks, **options)  # type: ignore[arg-type]
        return local(forkserver=server).run(job, on_state=None if states is None else states.append)

    return run


Runs = Callable[..., Run]


def test_a_failure_at_first_is_forgotten_but_noted(run: Runs) -> None:
    states: list[State] = []
    source = """
print("start", restarts, "of", n)
if rank == 2 and restarts == 0:
    raise ValueError("bad luck")
dist.barrier()
(rank, restarts, x.item(), os.environ["TORCHELASTIC_MAX_RESTARTS"])
"""
    result = run(source, ranks=3, states=states, max_restarts=3).raise_if_failed()
    assert result.values == [(rank, 1, 3.0, "3") for rank in range(3)]
    assert result.notes == ("restarted once after rank 2 failed: ValueError at Cell In[3], line 10",)
    assert result.ranks[2].output == "start 0 of 3\nstart 1 of 3\n", "what was printed before is kept"
    assert result.trace.world_size == 3 and len(result.trace.collectives()) == 6, "the last start's alone"
    phases = [state.phase for state in states if state.ended == 0]
    assert phases == ["running", "restarting", "running"]
    assert "after rank 2 failed: ValueError at Cell In[3], line 10" in next(
        state.text for state in states if state.phase == "restarting"
    )


def test_when_every_start_fails_the_last_failure_counts(run: Runs) -> None:
    result = run("if rank == 1:\n    os._exit(7)\ntime.sleep(600)", ranks=3, max_restarts=2)
    assert result.notes == ("restarted twice after rank 1 ended with exit code 7",)
    assert [r.exit for r in result.ranks] == [None, 7, None]
    first, last = result.diagnosis().splitlines()
    assert first.startswith("rank 1 ended with exit code 7: ") and last == "ranks 0, 2 stopped because of it"


def test_ranks_that_ask_for_sigterm_may_save_before_they_start_again(run: Runs) -> None:
    source = """
def save(*_):
    print("saved")
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
dist.barrier()
if rank == 1 and restarts == 0:
    os._exit(3)
if restarts == 0:
    time.sleep(600)
"""
    result = run(source, max_restarts=1).raise_if_failed()
    assert result.ranks[0].output == "saved\n"


def test_a_cell_that_kills_its_parent_takes_the_node_away_and_the_others_go_on(run: Runs) -> None:
    kill = "if restarts == 0 and rank == 1:\n    os.kill(os.getppid(), signal.SIGKILL)"
    result = run(kill + STEPS, nodes=2, ranks=2, min_nnodes=1, max_restarts=2).raise_if_failed()
    assert result.values == [(0, 2, 1, 1), (1, 2, 1, 1)]
    assert result.notes == ("restarted once after node 0 was lost, with 1 node and 2 ranks",)


def test_a_node_that_is_told_to_end_lets_its_ranks_save(run: Runs) -> None:
    source = """
signal.signal(signal.SIGTERM, lambda *_: (print("saved"), os._exit(0)))
if restarts == 0 and rank == 1:
    os.kill(os.getppid(), signal.SIGTERM)
"""
    result = run(source + STEPS, nodes=2, ranks=1, min_nnodes=1, max_restarts=1).raise_if_failed()
    assert result.values == [(0, 1, 1, 1)]
    assert result.notes == ("restarted once after node 1 was told to end (SIGTERM), with 1 node and 1 rank",)


def test_nodes_come_and_go_at_set_times(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "clock", clock := ManualClock())
    source = "print('waits', flush=True)\nwhile n < 3:\n    time.sleep(0.02)\n    dist.all_reduce(x)\n(n, nnodes)"
    cluster = local(nproc_per_node=1, nnodes=3, join_node=[60.0], forkserver=server)
    job = Job(source=HEAD + source, min_nnodes=1)
    result = cluster.run(job, When(lambda: clock.advance(60.0), 2).on_output).raise_if_failed()
    assert result.values == [(3, 3)] * 3
    assert result.notes == ("restarted once because a node joined, with 3 nodes and 3 ranks",)


def test_too_few_nodes_are_said_to_be_too_few(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "clock", clock := LateClock())
    source = HEAD + "print('waits', flush=True)" + STEPS.replace("30", "30_000")
    result = local(nproc_per_node=1, nnodes=2, lose_node=[0.3], forkserver=server).run(
        Job(source=source, filename="Cell In[3]", max_restarts=5), When(clock.start, 2).on_output
    )
    assert result.stopped == "node 1 was lost: 1 node is left, 2 are needed"
    # which of them is rank 1: torch's agents sort nodes by PID, which may have begun anew between the two
    errors = [rank.error.message for rank in result.ranks if rank.error is not None]
    assert "node 1 was lost, and this rank with it" in errors


def test_a_hang_after_a_restart_names_each_ranks_line(server: ForkServer) -> None:
    source = f"if restarts == 0:\n    os._exit(1)\n{ANNOUNCE}if rank == 0:\n    dist.barrier()\nelse:\n"
    source += "    print('waits'); time.sleep(600)"
    clock = server.supervisor_clock
    assert isinstance(clock, ManualClock)
    job = Job(source=HEAD + source, filename="Cell In[3]", max_restarts=1, timeout=1, hang_timeout=None)
    result = local(nproc_per_node=2, forkserver=server).run(job, When(lambda: clock.advance(1.0), 2).on_output)
    assert result.stopped == "timeout after 1 s"
    assert [r.error and r.error.where for r in result.ranks] == ["Cell In[3], line 11", "Cell In[3], line 13"]


def test_ranks_of_two_nodes_that_wait_for_each_other_are_stopped_as_elsewhere(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "supervisor_clock", clock := LateClock(SLOWLY))
    source = f"{ANNOUNCE}if rank == 0:\n    dist.barrier()\nelse:\n    dist.recv(x, 0)"
    job = Job(source=HEAD + source, filename="Cell In[3]", min_nnodes=1, nnodes=2, hang_timeout=MOMENT)
    result = local(nproc_per_node=1, forkserver=server).run(job, When(clock.start, 2).on_output)
    assert result.stopped == "hang: no output and no progress for 0.0002 s"
    assert [status.waits_in and status.waits_in.name for status in result.statuses] == ["barrier", "recv"]
    assert [r.error and (r.error.type, r.error.where) for r in result.ranks] == [
        ("Hang", "Cell In[3], line 9"),
        ("Hang", "Cell In[3], line 11"),
    ]


def test_interrupting_ends_every_node_and_all_below() -> None:
    source = HEAD + "import multiprocessing\nmultiprocessing.Process(target=time.sleep, args=(600,)).start()\n"
    source += "print('node', os.getppid(), flush=True)\ntime.sleep(600)"
    nodes: list[psutil.Process] = []
    below: list[psutil.Process] = []

    def interrupt(rank: int, stream: str, text: str) -> None:
        nodes.extend(psutil.Process(int(pid)) for pid in re.findall(r"node (\d+)", text))
        if len(nodes) == 2:
            below.extend(process for node in nodes for process in node.children(recursive=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local(nproc_per_node=1, nnodes=2).run(Job(source=source, min_nnodes=1, max_restarts=1), interrupt)
    assert len(below) == 6, "of each node its agent, one rank, and that rank's child"
    wait_until(lambda: not any(process.is_running() for process in [*nodes, *below]))


def test_nothing_is_left_when_the_program_is_killed() -> None:
    program = textwrap.dedent(
        f"""
        from labkit import Job, local
        source = {HEAD!r} + "print('begun', flush=True)\\ntime.sleep(600)"
        local(nproc_per_node=1, nnodes=2).run(Job(source=source, max_restarts=1), lambda *_: print("begun", flush=True))
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(2):
        assert "begun" in process.stdout.readline()
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 7, "the forkserver, and of each node its supervisor, its agent and one rank"
    process.kill()
    process.wait()
    wait_until(lambda: not any(process.is_running() for process in below))


@pytest.mark.parametrize(
    ("options", "job", "message"),
    [
        ({"lose_node": [-1.0]}, {}, "lose_node must be seconds since the start, 0 or more"),
        ({"nnodes": 2, "join_node": [1.0]}, {}, "1 of 2 nodes would join later, but 2 are needed to begin"),
        ({"nnodes": 2}, {"min_nnodes": 3}, "at least 3 nodes of at most 2 cannot be had"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, object], job: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        local(**options).run(Job(source="0", **job))  # type: ignore[arg-type]
