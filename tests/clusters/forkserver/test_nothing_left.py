"""However a run ends, it leaves no process, port, file or shared memory behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clocks import MOMENT, SLOWLY, LateClock
from waiting import wait_until

from labkit import Job, local
from labkit.clusters.forkserver.client import ForkServer, shared
from labkit.linux.processes import descendants

pytestmark = pytest.mark.alone  # /dev/shm is shared by all processes

# each rank is connected to the others, and has a grandchild that has left its session and its parents
BUSY = """\
import os, time, torch, torch.distributed as dist
from multiprocessing import shared_memory
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
memory = shared_memory.SharedMemory(create=True, size=1000)
receiving, sending = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", os.getpid(), flush=True)
        os.write(sending, b"printed")
        time.sleep(600)
    os._exit(0)
os.read(receiving, 7)  # a rank that ends at once would end it before
print("rank", os.getpid(), flush=True)
"""


class Pids:
    """Collects the process ids that ranks print; calls `when_all_known` once all are there."""

    def __init__(self, count: int, when_all_known: Callable[[], None] = lambda: None) -> None:
        self._texts: defaultdict[int, str] = defaultdict(str)
        self._count = count
        self._when_all_known = when_all_known
        self.known: set[int] = set()

    def __call__(self, rank: int, stream: str, text: str) -> None:
        if stream == "stdout":
            self._texts[rank] += text
        before = len(self.known)
        for printed in self._texts.values():
            self.known |= {int(pid) for pid in re.findall(r"^(?:rank|grandchild) (\d+)\n", printed, re.MULTILINE)}
        if before < self._count == len(self.known):
            self._when_all_known()


@pytest.fixture(autouse=True)
def machine_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    shared_before = set(os.listdir("/dev/shm"))
    yield
    # torch makes its cache folder when DistributedDataParallel's code is imported
    assert list(folder.iterdir()) == []
    assert set(os.listdir("/dev/shm")) - shared_before == set()


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


@pytest.mark.parametrize(
    ("ending", "timeout"),
    [
        ("memory.unlink()", None),
        ("memory.unlink()\nraise ValueError", None),
        ("memory.unlink()\nos.kill(os.getpid(), 11)", None),
        ("time.sleep(600)", MOMENT),
    ],
    ids=["success", "error", "crash", "time-out"],
)
def test_nothing_is_left_when_a_run_ends(ending: str, timeout: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock(SLOWLY)
    monkeypatch.setattr(shared(), "clock", clock)
    pids = Pids(4, clock.start)
    run = local(nproc_per_node=2).run(Job(source=BUSY + ending, timeout=timeout), pids)
    assert len(pids.known) == 4, run.diagnosis()
    assert alive(pids.known) == set()


def test_nothing_is_left_on_interrupt() -> None:
    pids = Pids(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        local(nproc_per_node=2).run(Job(source=BUSY + "time.sleep(600)"), pids)
    assert alive(pids.known) == set()
    assert local(nproc_per_node=2).run(Job(source="1")).values == [1, 1], "and the next run works"


WORKERS = """\
import os, signal, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("rank", os.getpid(), flush=True)
class Data(TensorDataset):
    def __getitem__(self, index):
        if index == 150:
            print("grandchild", os.getpid(), flush=True)
        return super().__getitem__(index)
data = Data(torch.randn(10_000, 64))
loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
while True:
    for number, (x,) in enumerate(loader):
        dist.all_reduce(x)
        if number == 50 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_nothing_is_left_of_data_workers_and_of_a_rank_that_stands_still() -> None:
    pids = Pids(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        local(nproc_per_node=2).run(Job(source=WORKERS), pids)
    assert alive(pids.known) == set()


def test_nothing_is_left_when_showing_output_fails() -> None:
    pids = Pids(4)

    def show(rank: int, stream: str, text: str) -> None:
        pids(rank, stream, text)
        if len(pids.known) == 4:
            raise BrokenPipeError("the terminal is gone")

    with pytest.raises(BrokenPipeError):
        local(nproc_per_node=2).run(Job(source=BUSY + "time.sleep(600)"), show)
    assert alive(pids.known) == set()


KERNEL = f"""\
import json, os, sys
from labkit import Job, local
def show(*part):
    print(json.dumps(part), flush=True)
if "fork" in sys.argv:
    local(nproc_per_node=1).run(Job(source="1"))
    if os.fork() == 0:  # a child that outlives its parent, as those of multiprocessing do
        import time
        time.sleep(600)
        os._exit(0)
local(nproc_per_node=2).run(Job(source={BUSY + "time.sleep(600)"!r}), show)
"""


@pytest.mark.parametrize("arguments", [[], ["fork"]], ids=["alone", "with a forked child"])
def test_nothing_is_left_when_the_kernel_is_killed(arguments: list[str]) -> None:
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, *arguments], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    pids = Pids(4)
    while len(pids.known) < 4:
        line = kernel.stdout.readline()
        assert line, "the kernel ended too early"
        pids(*json.loads(line))
    forked = _forked(kernel.pid) if arguments else set()
    below = set(descendants(kernel.pid)) - forked
    assert pids.known < below, "ranks and their grandchildren, a supervisor, the forkserver"
    kernel.kill()
    kernel.wait()
    wait_until(lambda: not alive(below))
    assert alive(forked) == forked
    for pid in forked:
        os.kill(pid, signal.SIGKILL)


def test_a_warm_process_that_is_just_starting_ends_with_the_kernel() -> None:
    starting = (
        "from labkit.clusters.forkserver.client import shared; shared().start(); print('begun', flush=True); input()"
    )
    kernel = subprocess.Popen(
        [sys.executable, "-c", starting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert kernel.stdout is not None
    assert kernel.stdout.readline() == "begun\n"
    below = set(descendants(kernel.pid))
    assert below
    kernel.kill()
    kernel.wait()
    wait_until(lambda: not alive(below))


def _forked(kernel: int) -> set[int]:
    """Return children that run the same command as their parent: forks of it."""
    command = Path(f"/proc/{kernel}/cmdline").read_bytes()
    return {pid for pid in descendants(kernel) if Path(f"/proc/{pid}/cmdline").read_bytes() == command}


def test_a_supervisor_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    known = tmp_path / "known"
    pids = Pids(4, known.touch)
    source = (
        f"while not os.path.exists({str(known)!r}):\n    time.sleep(0.01)\nos.kill(os.getppid(), 9)\ntime.sleep(600)"
    )
    source = BUSY + source
    forkserver = ForkServer()
    run = local(nproc_per_node=2, forkserver=forkserver).run(Job(source=source), pids)
    assert run.stopped == "the process that watches over the ranks died"
    assert not run.ok
    assert len(pids.known) == 4
    wait_until(lambda: not alive(pids.known))
    assert local(nproc_per_node=2, forkserver=forkserver).run(Job(source="1")).values == [1, 1]
    forkserver.close()


def test_closing_ends_the_warm_process() -> None:
    forkserver = ForkServer()
    (pid,) = local(nproc_per_node=1, forkserver=forkserver).run(Job(source="import os\n" + PARENT_OF_SUPERVISOR)).values
    threads = os.listdir(f"/proc/{pid}/task")
    assert len(threads) == 1, "it is forked, and a fork has one thread only"
    forkserver.close()
    assert not Path(f"/proc/{pid}").exists()


PARENT_OF_SUPERVISOR = "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
