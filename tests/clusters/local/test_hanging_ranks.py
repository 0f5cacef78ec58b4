"""Real ranks that wait in vain are reported, with who is missing; slow or quiet ranks are not."""

from __future__ import annotations

import os
import select
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from announcing import When
from clocks import MOMENT, SLOWLY, LateClock, ManualClock
from forkservers import forkserver_that_reads_clocks
from waiting import wait_until

from labkit import Job, Run, local
from labkit.clusters import State
from labkit.clusters.forkserver.client import ForkServer

SECONDS = 0.2
"""Silence that is reported, where a test moves the clock."""
HEAD = """\
import os, sys, time, torch, torch.distributed as dist; from announcing import announce_waits
dist.init_process_group("gloo"); announce_waits()
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
"""
LATER = HEAD.replace("; announce_waits()", "")
SLEEP = "print('waits'); time.sleep(600)"
BARRIER = f"[0, 2]  Cell In[3], line 7: {'dist.barrier()':{len(SLEEP)}}  waits in barrier #1 of the group 0-2"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with forkserver_that_reads_clocks() as made:
        yield made


@pytest.fixture
def late(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> LateClock:
    """The clock of all limits: it begins when a test starts it."""
    clock = LateClock(SLOWLY)
    monkeypatch.setattr(server, "clock", clock)
    monkeypatch.setattr(server, "supervisor_clock", clock)
    return clock


@pytest.fixture
def manual(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the supervisors' limits: it stands still unless a test moves it."""
    clock = ManualClock()
    monkeypatch.setattr(server, "supervisor_clock", clock)
    return clock


@pytest.fixture
def told(server: ForkServer, late: LateClock) -> Callable[..., list[str]]:
    def told(source: str, ranks: int = 3, head: str = HEAD) -> list[str]:
        job = Job(source=head + source, filename="Cell In[3]", hang_timeout=MOMENT)
        found = local(nproc_per_node=ranks, forkserver=server).run(job, When(late.start, ranks).on_output)
        assert found.stopped == "hang: no output and no progress for 0.0002 s", found.diagnosis()
        return found.diagnosis().splitlines()

    return told


Told = Callable[..., list[str]]


def test_a_rank_that_sleeps_while_others_are_in_a_barrier(told: Told) -> None:
    assert told(f"if rank == 1:\n    {SLEEP}\ndist.barrier()") == [
        "stopped: hang: no output and no progress for 0.0002 s",
        BARRIER,
        f"[1]     Cell In[3], line 6: {SLEEP}  in no operation",
        f"barrier #1 of the group 0-2: ranks 0, 2 wait in it at line 7, rank 1 is missing: it is at line 6: {SLEEP}",
        "try: find out why rank 1 does not get past Cell In[3], line 6",
    ]


def test_mismatched_collectives(told: Told) -> None:
    lines = told(
        "dist.all_reduce(x); announce_waits()\nif rank == 2:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)",
        head=LATER,
    )
    assert lines[1] == "[0-1]  Cell In[3], line 9: dist.all_reduce(x)  waits in all_reduce #2 of the group 0-2, 16 B"
    assert lines[3] == (
        "call #2 of the group 0-2 differs: ranks 0-1 wait in all_reduce at line 9, rank 2 waits in barrier at line 7"
    )


def test_a_receive_without_its_send(told: Told) -> None:
    lines = told("if rank == 1:\n    dist.recv(x, 0)\ndist.barrier()")
    assert "[1]     Cell In[3], line 6: dist.recv(x, 0)  waits in recv from rank 0, 16 B" in lines
    assert lines[-1] == "try: every receive needs a send: rank 0 must call send(..., dst=1)"


def test_a_circle_of_sends(told: Told) -> None:
    lines = told("dist.send(x, (rank + 1) % n)\ndist.recv(x, (rank - 1) % n)")
    assert lines[-2] == "cycle: 0 → 1 → 2 → 0"
    assert "let one side receive first, or post the send with isend" in lines[-1]


def test_a_rank_that_ended_while_its_group_lives(told: Told) -> None:
    # its process stays, with a thread that sleeps, and so do its connections
    lines = told("import threading\nif rank == 1:\n    threading.Thread(target=time.sleep, args=(600,)).start()\n"
                 "    threading._register_atexit(print, 'waits')\nelse:\n    dist.barrier()")  # fmt: skip
    assert "[1]     has ended" in lines
    assert any("rank 1 is missing: it has ended" in line for line in lines)
    assert lines[-1].startswith("try: every rank of a group must make all of its calls")


def test_a_hang_in_the_backward_pass_is_in_its_all_reduce(told: Told) -> None:
    lines = told(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(torch.nn.Linear(4, 4)); announce_waits()\n"
        "if rank == 1:\n    sys.stdin = None\n    import queue; print('waits'); queue.Queue().get()\n"
        "model(x).sum().backward()",
        head=LATER,
    )
    assert lines[1].startswith("[0, 2]  Cell In[3], line 10: model(x).sum().backward()")
    assert "waits in all_reduce #" in lines[1]
    assert "rank 1 is missing: it is at line 9" in lines[3]


def test_a_rank_that_never_comes_to_init_process_group(told: Told) -> None:
    head = "import os, time, torch.distributed as dist; from announcing import announce_waits; announce_waits()\n"
    lines = told(f"if os.environ['RANK'] == '1':\n    {SLEEP}\ndist.init_process_group('gloo')", head=head)
    assert f"ranks 0, 2 wait in init_process_group at line 4, rank 1 is missing: it is at line 3: {SLEEP}" in lines


class Running:
    """A run in another thread, whose ranks do one step for each byte that they read from `go`; they answer at `did`."""

    def __init__(self, server: ForkServer, clock: ManualClock, folder: Path, source: str, ranks: int, **options: Any):
        files = [folder / "go", folder / "did"]
        for file in files:
            os.mkfifo(file)
        head = "".join(f"{file.name} = open({str(file)!r}, 'r+b', 0)\n" for file in files)
        job = Job(source=HEAD + head + source, filename="Cell In[3]", **{"hang_timeout": SECONDS, **options})
        self.states: list[State] = []
        self._waiting = threading.Event()
        on_output, cluster = When(self._waiting.set, ranks).on_output, local(nproc_per_node=ranks, forkserver=server)
        self._clock = clock
        self.go, self._did = (os.open(file, os.O_RDWR) for file in files)
        self._executor = ThreadPoolExecutor(1)
        self._run = self._executor.submit(cluster.run, job, on_output, self.states.append)

    def until(self, reached: Callable[[], object]) -> None:
        """Wait until this is true; fail if the run ends before."""
        wait_until(lambda: reached() or self._run.done())
        assert reached(), self._run.result().diagnosis()

    def until_all_wait(self) -> None:
        self.until(self._waiting.is_set)

    def tell(self, ranks: int) -> None:
        os.write(self.go, b"." * ranks)

    def hear(self, ranks: int) -> None:
        for _ in range(ranks):
            self.until(lambda: select.select([self._did], [], [], 0)[0])
            os.read(self._did, 1)

    def step(self) -> None:
        """Have a rank do a step."""
        self.tell(1)
        self.hear(1)

    def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass, which the supervisor sees."""
        self._clock.advance(seconds)
        self.until(lambda: self._clock.seen)

    def result(self) -> Run:
        run = self._run.result()
        self._executor.shutdown()
        for file in (self.go, self._did):
            os.close(file)
        return run


@pytest.fixture
def start(server: ForkServer, manual: ManualClock, tmp_path: Path) -> Callable[..., Running]:
    def start(source: str, ranks: int, **options: Any) -> Running:
        return Running(server, manual, tmp_path, source, ranks, **options)

    return start


Start = Callable[..., Running]
STEPS = """
    for step in range(5):
        go.read(1)
        {activity}
        did.write(b".")
"""
COMPUTE = "until = time.process_time() + 0.1\n        while time.process_time() < until:\n            x @ x"


@pytest.mark.parametrize(
    "busy",
    [
        STEPS.format(activity=COMPUTE),
        STEPS.format(activity="print(step)"),
        f"\n    child = os.fork()\n    if child == 0:{textwrap.indent(STEPS.format(activity=COMPUTE), '    ')}"
        "        os._exit(0)\n    os.wait()",
        STEPS.format(activity="open('/dev/zero', 'rb').read(1 << 20)"),
    ],
    ids=["computes", "prints", "has a child that computes", "reads"],
)
def test_a_rank_that_does_something_is_no_hang(busy: str, start: Start) -> None:
    running = start(f"if rank == 1:\n    print('waits'){busy}\n    go.read(1)\ndist.barrier()\n'done'", 3)
    running.until_all_wait()
    for _ in range(5):
        running.step()
        running.pass_by(SECONDS / 2)
    running.tell(1)
    assert running.result().raise_if_failed().values == ["done"] * 3


def test_ranks_that_are_all_only_quiet_are_no_hang(start: Start) -> None:
    running = start("print('waits'); go.read(1)\n'done'", 2)
    running.until_all_wait()
    for _ in range(5):
        running.pass_by(SECONDS / 2)
    running.tell(2)
    assert running.result().raise_if_failed().values == ["done"] * 2


def test_a_hang_may_be_waited_for(start: Start) -> None:
    wait = "print('waits'); go.read(1)"
    source = f"if rank == 1:\n    {wait}\ndist.barrier()\ndid.write(b'.')\ngo.read(1)\n'done'"
    running = start(source, 2, on_hang="wait")
    running.until_all_wait()
    for _ in range(8):
        running.pass_by(SECONDS / 2)
    running.until(lambda: running.states[-1].phase == "hanging")
    running.tell(1)
    running.hear(2)
    running.pass_by(SECONDS / 2)
    running.until(lambda: running.states[-1].phase == "running")
    running.tell(2)
    assert running.result().raise_if_failed().values == ["done"] * 2
    hanging = [state for state in running.states if state.phase == "hanging"]
    assert len(hanging) == 1, "it is told once"
    assert f"rank 1 is missing: it is at line 8: {wait}" in hanging[0].text


@pytest.mark.parametrize("seconds", [None, SECONDS])
def test_a_hang_may_be_of_no_interest(start: Start, manual: ManualClock, tmp_path: Path, seconds: float | None) -> None:
    parent = tmp_path / "parent"
    source = f"if rank == 1:\n    open({str(parent)!r}, 'w').write(str(os.getppid()))\n    print('waits'); go.read(1)\n"
    running = start(source + "dist.barrier()", 2, hang_timeout=seconds, on_hang="wait")
    running.until_all_wait()
    for _ in range(4):
        manual.advance(1000.0)
        running.until(partial(seen_by, int(parent.read_text()), manual))
    running.tell(1)
    running.result().raise_if_failed()
    assert ("hanging" in {state.phase for state in running.states}) == (seconds is not None)


def seen_by(supervisor: int, clock: ManualClock) -> bool:
    """Wake the supervisor, which looks at the clock; return whether it has done what is due."""
    os.kill(supervisor, signal.SIGCHLD)
    return clock.seen


def test_a_time_out_and_an_interrupt_tell_the_same(server: ForkServer, late: LateClock) -> None:
    source = f"{HEAD}if rank == 1:\n    {SLEEP}\ndist.barrier()"
    cluster = local(nproc_per_node=3, forkserver=server)
    job = Job(source=source, filename="Cell In[3]", hang_timeout=None, timeout=MOMENT)
    found = cluster.run(job, When(late.start, 3).on_output)
    assert found.stopped == "timeout after 0.0002 s"
    assert BARRIER in found.diagnosis()

    def interrupt(state: State) -> None:
        if state.phase == "hanging":
            signal.raise_signal(signal.SIGINT)

    server.clock = server.supervisor_clock = again = LateClock(SLOWLY)
    job = Job(source=source, filename="Cell In[3]", hang_timeout=MOMENT, on_hang="wait")
    with pytest.raises(KeyboardInterrupt) as raised:
        cluster.run(job, When(again.start, 3).on_output, interrupt)
    assert raised.value.__notes__[:2] == [
        BARRIER,
        f"[1]     Cell In[3], line 6: {SLEEP}  in no operation",
    ]
