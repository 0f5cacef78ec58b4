"""Limits of learners' servers, on sandboxes with small programs in place of JupyterLab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

from autograder.classroom.folders import Folders
from autograder.classroom.limits.disk import DiskLimit, used_bytes
from autograder.classroom.limits.memory import MemoryLimit, scratch_bytes
from autograder.classroom.limits.notices import NoticeWriter, read
from autograder.classroom.limits.sandboxes import RunningServer, running
from autograder.classroom.limits.service import Looks
from autograder.sandbox import Sandbox, cgroups
from autograder.sandbox.bwrap import bwrap
from autograder.sandbox.cgroups import Cgroup
from labkit.linux import proc

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

MIB = 1 << 20
PARENTS = cgroups.prepare()
HOLDS = "import pathlib, sys, time; held = b'x' * (int(sys.argv[1]) << 20); pathlib.Path(sys.argv[2]).touch(); "
HOLDS += "time.sleep(600)"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    found = Folders(tmp_path / "classroom", tmp_path / "running", "course")
    found.running.mkdir()
    found.prepare()
    found.home("ada").mkdir()
    found.in_exchange("inbound", "ada").mkdir()
    return found


@contextmanager
def server(folders: Folders, program: str, group: Cgroup | None = None) -> Iterator[RunningServer]:
    """Run a shell program as a learner's server, in the learner's home, where it makes the file `ready` in the end."""
    home = folders.home("ada")
    command = [bwrap(), "--unshare-user", "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/"]
    command += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/dev/shm",
        "--bind",
        str(home),
        str(home),
        "--chdir",
        str(home),
    ]
    join = None if group is None else lambda: group.add(os.getpid())
    process = subprocess.Popen(
        [*command, "--", "/bin/sh", "-c", f"{program}\ntouch ready; kill -STOP $$"], preexec_fn=join
    )
    try:
        wait_until(lambda: (home / "ready").exists())
        (found,) = running(os.getpid(), folders.homes)
        yield found
    finally:
        process.kill()
        process.wait()
        if group is not None:
            group.remove()


def holding(mib: int, name: str) -> str:
    """Return shell words that start a program with that much memory, and wait until it holds it."""
    return f'"{sys.executable}" -SE -c "{HOLDS}" {mib} {name} & while [ ! -e {name} ]; do sleep 0.01; done'


def programs(found: RunningServer) -> set[bytes]:
    """Return which of the programs that hold memory are running."""
    running = [proc.read(f"{pid}/cmdline").split(b"\0") for pid in found.started_by_learner()]
    return {words[-2] for words in running if len(words) > 2 and words[-2] in (b"small", b"large")}


def test_the_largest_process_ends_and_the_server_and_its_others_go_on(folders: Folders) -> None:
    with server(folders, f"{holding(20, 'small')}; {holding(150, 'large')}") as found:
        assert found.learner == "ada" and programs(found) == {b"small", b"large"}
        said: list[str] = []
        MemoryLimit(1000 * MIB, None).look(found, said.append)
        preferred = {int(proc.read(f"{pid}/oom_score_adj")) for pid in found.started_by_learner()}
        assert min(preferred) > int(proc.read(f"{max(found.kept())}/oom_score_adj"))
        assert said == [] and programs(found) == {b"small", b"large"}
        MemoryLimit(150 * MIB, None).look(found, said.append)
        wait_until(lambda: programs(found) == {b"small"})
        assert len(said) == 1 and "The largest process was ended: the program 'python" in said[0], said
        MemoryLimit(150 * MIB, None).look(found, said.append)
        assert len(said) == 1 and list(running(os.getpid(), folders.homes)) == [found]


def test_files_in_memory_that_outlive_processes_end_the_server(folders: Folders) -> None:
    with server(folders, "head -c 60M /dev/zero >/dev/shm/x") as found:
        said: list[str] = []
        MemoryLimit(50 * MIB, None).look(found, said.append)
        assert "files in /tmp and /dev/shm, so it was stopped" in said[0]
        wait_until(lambda: not is_there(found))


def is_there(found: RunningServer) -> bool:
    return proc.stat(found.first)[0] not in b"ZX"


if os.geteuid() != 0:  # nothing is hidden from root

    def test_a_process_that_hides_its_memory_is_ended(folders: Folders) -> None:
        hides = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); open('hidden', 'w'); time.sleep(99)"
        program = f'"{sys.executable}" -SE -c "{hides}" & while [ ! -e hidden ]; do sleep 0.01; done'
        with server(folders, program) as found:
            said: list[str] = []
            MemoryLimit(1000 * MIB, None).look(found, said.append)
            assert "since it hides how much memory it uses: the program 'python" in said[0]
            wait_until(lambda: found.started_by_learner() == [])


if PARENTS is not None:

    def test_the_kernel_holds_the_limit_where_there_are_control_groups(folders: Folders) -> None:
        assert PARENTS is not None
        group = Cgroup.new(PARENTS, 150 * MIB, 100)
        with server(folders, f'"{sys.executable}" -SE -c "{HOLDS}" 300 large', group) as found:
            said: list[str] = []
            limit = MemoryLimit(150 * MIB, PARENTS)
            limit.look(found, said.append)
            assert len(said) == 1 and "The kernel has ended the largest process" in said[0], said
            limit.look(found, said.append)
            assert len(said) == 1 and is_there(found) and not (folders.home("ada") / "large").exists()


def test_folders_in_memory_leave_most_of_it_to_processes() -> None:
    assert scratch_bytes(0) == scratch_bytes(16 << 30) == 1 << 30 and scratch_bytes(2 << 30) == 512 << 20


def test_disk_space_counts_what_cannot_be_read_and_each_file_once(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        (folder / "closed").mkdir(parents=True)
    (own / "closed/data").write_bytes(b"x" * (3 * MIB))
    os.link(own / "closed/data", own / "closed/again")
    (own / "closed").chmod(0)
    for number in range(500):
        (other / f"empty{number}").touch()
    try:
        used = used_bytes([own, other])
    finally:
        (own / "closed").chmod(0o700)
    assert 3 * MIB < used[own] < 3.1 * MIB
    assert used[other] > 500 * 4096, "file systems have a limited number of files"


def test_a_full_home_warns_and_what_goes_on_writing_ends(folders: Folders) -> None:
    writes = "(while [ ! -e more ]; do sleep 0.01; done; head -c 5M /dev/zero >b; touch wrote; sleep 600) &"
    with server(folders, f"head -c 5M /dev/zero >a; {writes}") as found:
        looks = Looks(folders, os.getpid(), 0, 4 * MIB)
        looks.at_disk()
        looks.at_disk()
        kept = read(folders.notices("ada"))
        assert len(kept.notices) == 1 and "programs that write much more are ended" in kept.notices[0].text
        assert kept.disk_bytes is not None and 5 * MIB < kept.disk_bytes < 5.5 * MIB
        assert found.started_by_learner() != [], "nothing has grown since"
        (folders.home("ada") / "more").touch()
        wait_until((folders.home("ada") / "wrote").exists)
        looks.at_disk()
        wait_until(lambda: found.started_by_learner() == [])
        assert is_there(found), "the learner needs it to delete files"
        assert "Kernels, ranks and terminals were ended" in read(folders.notices("ada")).notices[-1].text


def test_a_server_that_itself_goes_on_writing_is_stopped(folders: Folders) -> None:
    with server(folders, "true") as found:
        said: list[str] = []
        limit = DiskLimit(4 * MIB)
        for used in (MIB, 5 * MIB):
            limit.look(found, used, said.append)
        assert "Your server was stopped" in said[0]
        wait_until(lambda: not is_there(found))


def test_the_newest_notices_are_kept(tmp_path: Path) -> None:
    writer = NoticeWriter(tmp_path)
    for number in range(30):
        writer.notify(str(number))
    assert [one.text for one in read(tmp_path).notices] == [str(number) for number in range(10, 30)]
