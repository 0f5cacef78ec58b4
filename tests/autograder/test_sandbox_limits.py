"""Resource limits of a submission, for all its processes together, and the kernel's accounting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from event_clock import HANG_SECONDS, IS_HELD, LETS_GO, SAYS_IT_HANGS, ByEvents
from waiting import BROKEN_SECONDS, wait_until

from autograder.sandbox import Sandbox, SandboxInstance, Usage
from autograder.sandbox.cgroups import Cgroup, find
from autograder.sandbox.runner import Bubblewrap
from labkit.clusters import Job, OnOutput, Run
from labkit.clusters.forkserver.client import ForkServerDied
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

COUNTING = [False, True] if find() else [False]
"""By the watchdog alone, and by control groups where this machine supports them."""


def ran(instance: SandboxInstance, source: str, ranks: int = 1) -> Run:
    return local(ranks, forkserver=instance.forkserver).run(Job(source=source, timeout=BROKEN_SECONDS))


HOLDS = """
import time
held = bytearray(b"x") * (200 << 20)
time.sleep(3600)  # until all ranks hold theirs, however late some of them begin
"""
SAYS_IT_HOLDS = f"print('holds', flush=True)\n{IS_HELD}\n"
"""Ends a program that is held until its sandbox has been looked at."""


def look_while_held(instance: SandboxInstance, lets_go: Path, seen: list[Usage]) -> OnOutput:
    """Return what is called with the ranks' output: note the usage, then let them go on."""

    def look(*_: object) -> None:
        if not lets_go.exists():
            seen.append(instance.usage())
            lets_go.touch()

    return look


@pytest.fixture
def lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LETS_GO, str(tmp_path / "lets-go"))
    return tmp_path / "lets-go"


@pytest.mark.parametrize("cgroups", COUNTING)
def test_memory_is_limited_for_all_processes_together(cgroups: bool) -> None:
    with Sandbox(memory_bytes=700 << 20, cgroups=cgroups).open() as instance:
        run = ran(instance, HOLDS, ranks=5)
        assert not run.ok
        usage = instance.usage()
        assert usage.memory_kills >= 1 and usage.memory_peak_bytes > 500 << 20, usage
        # the others of that call ended with it; the submission may go on
        assert instance.ended == ""
        assert ran(instance, "print('next')").ranks[0].output == "next\n"


HIDES = {
    "files of a virtual rank": "for i in range(3): open(f'/tmp/{i}', 'wb').write(bytes(100 << 20))",
    "anonymous and shared": "import mmap\nheld = mmap.mmap(-1, 300 << 20)\nheld.write(bytes(300 << 20))",
    "a file without name": "import os\nheld = os.memfd_create('x')\nos.write(held, bytes(300 << 20))",
    "files": "for i in range(3): open(f'/dev/shm/{i}', 'wb').write(bytes(100 << 20))",
}


@pytest.mark.parametrize("cgroups", COUNTING)
def test_no_kind_of_memory_is_overlooked(cgroups: bool, lets_go: Path) -> None:
    for where, source in HIDES.items():
        lets_go.unlink(missing_ok=True)
        limits = {"scratch_bytes": 400 << 20, "file_bytes": 400 << 20}
        with Sandbox(**limits, cgroups=cgroups, runner=ByEvents).open() as instance:
            seen: list[Usage] = []
            job = Job(source=f"{source}\n{SAYS_IT_HOLDS}", timeout=BROKEN_SECONDS)
            virtually = virtual(nproc_per_node=1, ranks="processes", forkserver=instance.forkserver)
            cluster = virtually if "virtual" in where else local(1, forkserver=instance.forkserver)
            run = cluster.run(job, on_output=look_while_held(instance, lets_go, seen))
            assert run.ok, run.ranks[0].error
            assert seen[0].memory_peak_bytes > 300 << 20, where


class InItsOwnBubblewrap(Bubblewrap):
    """Each sandbox has a bubblewrap of its own, as where namespaces cannot be nested."""

    def __init__(self) -> None:
        super().__init__()
        self._nests = False


CLEAR = """
import os
for folder in ("/tmp", "/dev/shm", "/home/learner"):
    for entry in os.scandir(folder):
        if entry.is_file():
            os.unlink(entry)
"""
MANY = """
import itertools, os
for number in itertools.count():
    os.close(os.open(f"{FOLDER}/{number}", os.O_CREAT))
"""
MUCH = """
with open(f"{FOLDER}/much", "wb", buffering=0) as file:
    while True:
        file.write(bytes(1 << 20))
"""
SAVES = "import torch\ntorch.save(torch.ones(6 << 20), f'{FOLDER}/much')"
TOO_LARGE = "open(f'{FOLDER}/large', 'wb', buffering=0).truncate(18 << 20)"
FULL = {
    MANY: "the 3,000 files and folders that it may hold are there",
    MUCH: "the 16 MiB that it may hold are there",
    SAVES: "the 16 MiB that it may hold are there",
    TOO_LARGE: "a file may hold 17 MiB",
}


@pytest.mark.parametrize(("runner", "apart"), [(Bubblewrap, True), (Bubblewrap, False), (InItsOwnBubblewrap, False)])
def test_files_are_limited_in_bytes_and_number_and_an_error_says_which(
    runner: type[Bubblewrap], apart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"scratch_bytes": 16 << 20, "scratch_files": 3000, "file_bytes": 17 << 20}
    with Sandbox(**limits, runner=runner, apart=apart).open() as instance:
        # an ordinary user's own bubblewrap may not limit them, and the log says so
        numbered = "Only memory limits" not in caplog.text
        assert numbered or (runner is InItsOwnBubblewrap and os.getuid() != 0)
        made = virtual(nproc_per_node=1, ranks="processes", forkserver=instance.forkserver)
        for cluster in (local(1, forkserver=instance.forkserver), made):
            for program, words in FULL.items():
                if program == MANY and not numbered:
                    continue
                folders = ("/tmp", "/dev/shm", "/home/learner") if program in (MANY, MUCH) else ("/dev/shm",)
                for folder in folders:
                    source = f"FOLDER = {folder!r}\n{CLEAR}{program}"
                    run = cluster.run(Job(source=source, timeout=BROKEN_SECONDS))
                    error = run.ranks[0].error
                    assert error is not None and f"{words})" in error.message, (folder, run.diagnosis())
                    if program == MANY or (program == MUCH and not apart):
                        assert f"({folder} is full: " in error.message


@pytest.mark.parametrize("cgroups", COUNTING)
def test_cpu_time_is_limited_for_all_processes_together(cgroups: bool) -> None:
    with Sandbox(cpu_seconds=1, cgroups=cgroups).open() as instance:
        ran(instance, "import time\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass", ranks=3)
        wait_until(lambda: instance.ended)
        with pytest.raises(ForkServerDied, match="more than 1 s of CPU time"):
            ran(instance, "1 + 1")
        assert instance.ended == "it used more than 1 s of CPU time"
        assert instance.usage().cpu_seconds > 1


def test_the_time_of_a_whole_submission_is_limited() -> None:
    with Sandbox(wall_seconds=HANG_SECONDS / 2, runner=ByEvents).open() as instance:
        run = ran(instance, f"import time\n{SAYS_IT_HANGS}\ntime.sleep(3600)")
        assert not run.ok
        assert instance.ended == f"it took longer than {HANG_SECONDS / 2:g} s"
        with pytest.raises(ForkServerDied, match=f"took longer than {HANG_SECONDS / 2:g} s"):
            ran(instance, "1 + 1")


ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(NUMEL)
dist.all_reduce(x)
assert x[0] == dist.get_world_size()
dist.barrier()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_kernel_counts_what_real_ranks_send(ranks: int, lets_go: Path) -> None:
    nbytes = 8 << 20
    with Sandbox(runner=ByEvents).open() as instance:
        assert ran(instance, ALL_REDUCE.replace("NUMEL", "1"), ranks).ok
        before = instance.usage().network_bytes
        # without control groups processes are sampled
        program = ALL_REDUCE.replace("NUMEL", str(nbytes // 4)) + SAYS_IT_HOLDS
        look = look_while_held(instance, lets_go, [])
        job = Job(source=program, timeout=BROKEN_SECONDS)
        run = local(ranks, forkserver=instance.forkserver).run(job, on_output=look)
        assert run.ok, run.ranks[0].error
        theory = 2 * (ranks - 1) * nbytes
        sent = instance.usage().network_bytes - before
        assert theory < sent < 1.05 * theory
    after = instance.usage()
    assert after.network_bytes >= before + sent
    assert after.processes >= ranks and after.cpu_seconds > 0 and after.memory_peak_bytes > ranks * nbytes


@pytest.mark.parametrize("cgroups", COUNTING)
def test_control_groups_are_made_where_the_site_wants_them(cgroups: bool) -> None:
    with Sandbox(cgroups=cgroups).open():
        parents = find()
        folders = parents.folders.values() if parents else ()
        assert cgroups == any(list(folder.glob(f"labkit-{os.getpid()}-*")) for folder in folders)


def test_control_groups_of_version_2_are_made_where_memory_is_handed_on(tmp_path: Path) -> None:
    """A folder laid out as by the kernel: this machine may have another version."""
    unified, mine = tmp_path / "cgroup", tmp_path / "cgroup" / "site" / "grader"
    mine.mkdir(parents=True)
    for folder, procs, on in ((unified, "", "cpu memory pids"), (mine.parent, "", "memory pids"), (mine, "77\n", "")):
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.procs").write_text(procs)
        (folder / "cgroup.subtree_control").write_text(on)
    mounts = f"30 23 0:26 / {unified} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    parents = find(mounts=mounts, own="0::/site/grader\n")
    assert parents is not None and parents.version == 2
    # the grader itself is in the innermost group, so the kernel would not limit groups below it
    assert parents.folders["memory"] == mine.parent
    group = Cgroup.new(parents, memory_bytes=1 << 30, processes=50)
    (folder,) = mine.parent.glob(f"labkit-{os.getpid()}-*")
    group.add(123)
    wrote = {file.name: file.read_text() for file in folder.iterdir()}
    assert wrote == {"memory.max": str(1 << 30), "memory.swap.max": "0", "pids.max": "50", "cgroup.procs": "123"}
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (folder / "memory.current").write_text("1000\n")
    (folder / "pids.current").write_text("7\n")
    assert group.memory_peak() is None  # before Linux 5.19
    (folder / "memory.peak").write_text("4096\n")
    assert (group.memory_peak(), group.memory(), group.memory_kills()) == (4096, 1000, 2)
    assert (group.cpu_seconds(), group.processes()) == (2.5, 7)


def test_a_group_that_is_handed_over_is_set_up(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cgroup.subtree_control").write_text("")
    parents = find(handed_over=str(tmp_path))
    assert parents is not None and parents.folders["memory"] == tmp_path
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
