"""The kernel's own view of real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.linux import descriptors, mounts, pidfd, prctl, proc, processes, shared_memory
from labkit.linux.files import exchange
from labkit.linux.libc import checked, libc


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_what_proc_states_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    pid = sleeper.pid
    assert proc.parent(pid) == os.getpid()
    assert proc.stat(pid)[0] in (b"S", b"R", b"D")
    assert 0 < proc.started("self") <= proc.started(pid)
    assert pid in proc.pids() and pid in proc.children(os.getpid()) and pid in processes.descendants(os.getpid())
    assert proc.threads(pid) == [pid]
    assert 0 < proc.table(f"{pid}/status")["VmRSS"] < 1 << 30
    assert proc.table(f"{pid}/status")["Threads"] == 1
    assert proc.table("meminfo")["MemTotal"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sleeper.kill()
    sleeper.wait()
    assert proc.children(pid) == []
    with pytest.raises(OSError):
        proc.stat(pid)


def test_a_command_with_brackets_and_blanks_does_not_shift_the_fields() -> None:
    source = "import sys\nopen('/proc/self/comm', 'w').write('a) b (c')\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert proc.parent(process.pid) == os.getpid()
        process.kill()


def test_handlers_of_another_process_are_known(sleeper: subprocess.Popen[bytes]) -> None:
    assert proc.catches(os.getpid(), signal.SIGINT)
    assert not proc.catches(sleeper.pid, signal.SIGINT)


def test_a_handle_sees_and_brings_about_the_end_of_its_process(sleeper: subprocess.Popen[bytes]) -> None:
    handle, another = pidfd.ProcessHandle(sleeper.pid), pidfd.ProcessHandle(sleeper.pid)
    assert handle.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        handle.wait(0.0)
    handle.kill()
    assert handle.wait() == handle.poll() == -signal.SIGKILL
    assert another.wait() == 0  # how it ended has been asked already
    sleeper.wait()
    handle.kill()  # harmless
    with pytest.raises(OSError):
        pidfd.ProcessHandle(sleeper.pid)


def test_a_handle_of_a_forked_process_has_its_exit_status() -> None:
    if (pid := os.fork()) == 0:
        os._exit(7)
    assert pidfd.ProcessHandle(pid).wait() == 7


def test_a_forked_process_ends_with_its_parent_and_closes_what_it_inherited() -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        middle = os.getpid()
        if os.fork() == 0:
            prctl.die_with_parent(middle)
            descriptors.close_all_but({0, 1, 2, writing})
            os.write(writing, repr(len(descriptors.open_descriptors())).encode())
            signal.pause()
        signal.pause()
    os.close(writing)
    assert os.read(reading, 10) == b"5"  # with the one that listed them
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(reading, 10) == b""
    os.close(reading)


def test_errors_of_the_c_library_name_the_call() -> None:
    with pytest.raises(OSError, match="closing nothing: Bad file descriptor"):
        checked(libc.close(-1), "closing nothing")


def test_mount_points_include_the_root() -> None:
    assert "/" in mounts.mount_points()


def test_memory_is_removed_that_a_process_made_and_had_no_time_to_register() -> None:
    """What the resource tracker was not told of; what was there before the process keeps its name."""
    script = """
import os, sys
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
names = [shared_memory.SharedMemory(name=name, create=True, size=1000) for name in (None, sys.argv[1])]
print(names[0].name, flush=True)
sys.stdin.read()
"""
    own = f"labkit_test_{os.getpid()}"
    command = [sys.executable, "-c", script, own]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        drawn = process.stdout.readline().strip()
        held = shared_memory.held_by([process.pid])
        process.kill()
    made = os.stat(f"/dev/shm/{own}").st_mtime
    try:
        shared_memory.remove(held, made + 60)
        assert {drawn, own} <= set(os.listdir("/dev/shm"))
        shared_memory.remove(held, made - 60)
        assert {drawn, own} & set(os.listdir("/dev/shm")) == {own}, "a name that the program chose may be meant to stay"
    finally:
        os.unlink(f"/dev/shm/{own}")


def test_two_folders_are_exchanged_or_both_stay(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    exchange(first, second)
    assert ((first / "name").read_text(), (second / "name").read_text()) == ("second", "first")
    with pytest.raises(FileNotFoundError, match="exchange of"):
        exchange(first, tmp_path / "none")
    assert (first / "name").read_text() == "second" and not (tmp_path / "none").exists()
