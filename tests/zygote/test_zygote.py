"""A zygote, and processes that it forks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked_programs
import psutil
import pytest
from waiting import BROKEN_SECONDS, wait_until

from labkit.transport import datagrams
from labkit.zygote import ADDRESS, client, kernel
from labkit.zygote.request import Request

_SERVE = "import sys; from labkit.zygote import server; server.serve(server.listen(sys.argv[1]))()"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("zygote") / "socket"
    with serving(path):
        yield str(path)


@contextmanager
def serving(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A zygote that listens at `path`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-P", "-c", _SERVE, str(path)], env=environment) as process:
        wait_until(lambda: process.poll() is not None or listens(path))
        assert process.poll() is None
        yield process
        process.kill()


def listens(path: Path) -> bool:
    """Whether somebody does: the socket has its name before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(str(path)) == 0


def started(
    address: str, program: str, output: int, arguments: Any = None, more: tuple[int, ...] = (), **own: str
) -> client.ForkedProcess:
    asked = Request(getattr(forked_programs, program), arguments, own, "/", "a tested program")
    with open(os.devnull, "rb") as nothing:
        return client.fork(asked, [nothing.fileno(), output, output, *more], address)


def printed(address: str, program: str, path: Path, **own: str) -> str:
    with path.open("wb") as output:
        assert started(address, program, output.fileno(), **own).wait(BROKEN_SECONDS) == 0
    return path.read_text()


def test_a_process_has_what_was_asked_for_and_nothing_of_the_zygote_s(address: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    with (tmp_path / "output").open("wb") as output:
        process = started(address, "report", output.fileno(), {"a": [1]}, (write,), COLOUR="blue")
        os.close(write)
        assert process.wait(BROKEN_SECONDS) == 0 == process.poll() == process.returncode
    with open(read, "rb") as file:
        assert file.read() == b"written"  # the zygote has not kept the other end
    first, second = (tmp_path / "output").read_text().splitlines()
    assert first == "{'a': [1]}|{'COLOUR': 'blue'}|/|a tested progra|True"
    assert second == "[] 1"


def test_no_two_processes_draw_alike(address: str, tmp_path: Path) -> None:
    one, other = (printed(address, "draw", tmp_path / name, TMPDIR=str(tmp_path)).split() for name in ("one", "other"))
    assert all(mine != yours for mine, yours in zip(one[:3], other[:3], strict=True))
    assert one[3] == other[3] == str(tmp_path)


def test_its_end_is_told_as_popen_tells_it(address: str) -> None:
    assert started(address, "end", 1, 3).wait(BROKEN_SECONDS) == 3
    process = started(address, "last", 1)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.terminate()
    assert process.wait(BROKEN_SECONDS) == -signal.SIGTERM
    process.kill()  # it has ended: nothing is killed


def test_a_kernel_ends_with_its_zygote(tmp_path: Path) -> None:
    connection = tmp_path / "kernel.json"
    with serving(tmp_path / "socket") as zygote, (tmp_path / "output").open("wb") as output:
        asked = Request(kernel.main, ["-f", str(connection)], dict(os.environ), "/", kernel.NAME)
        forked = client.fork(asked, [output.fileno()] * 3, str(tmp_path / "socket"))
        wait_until(connection.exists, (tmp_path / "output").read_text)
        running = psutil.Process(forked.pid)
        zygote.kill()
        running.wait(BROKEN_SECONDS)


def test_a_request_that_makes_no_sense_harms_no_other(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        datagrams.send(connection, {"program": "unknown"})
        answer, _ = datagrams.receive(connection)
        assert answer is not None and "missing" in answer["error"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        connection.send(b"[")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)  # and nothing
    assert started(address, "end", 1, 0).wait(BROKEN_SECONDS) == 0


def test_without_a_zygote_its_client_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    asked = Request(forked_programs.end, 0, {}, "/", "none")
    with pytest.raises(client.NoZygote, match="no zygote is running here"):
        client.fork(asked, [0, 1, 2])
    with pytest.raises(client.NoZygote, match="does not answer"):
        client.fork(asked, [0, 1, 2], str(tmp_path / "nothing"))


AHEAD = """
import os, sys
from labkit.zygote import preloading
preloading.load()
written = os.listdir(os.environ["HOME"])
print(len(os.listdir("/proc/self/task")), written, *(name in sys.modules for name in ("autograder", "matplotlib")))
from labkit.zygote import kernel
before = set(sys.modules)
app = kernel.KernelApp.instance()
app.initialize(["-f", os.environ["HOME"] + "/kernel.json", "--Session.key=b'key'"])
told = sys.__stdout__
import random
print(random.__file__ in app.kernel.debugger.kernel_modules, before <= app.shell._sys_modules_keys, file=told)
print(sorted(set(sys.modules) - before), file=told, flush=True)
os._exit(0)
"""


def test_what_is_imported_ahead_is_all_that_a_kernel_needs_and_starts_no_thread(tmp_path: Path) -> None:
    one = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **one, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, "-P", "-c", AHEAD], env=environment, capture_output=True, text=True)
    ahead, *_, remembered, later = ran.stdout.splitlines()  # IPython says something, too
    assert (ahead, remembered) == ("1 [] False False", "True True"), ran.stderr
    assert len(later.split(",")) < 5, later
