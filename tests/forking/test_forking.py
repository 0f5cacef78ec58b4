"""A forkserver forks what is requested, and tells how it ends."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import forked_programs
import pytest
from unix_users import call_as, unix_users
from waiting import BROKEN_SECONDS, wait_until

from labkit.forking import client, held
from labkit.forking.request import Request, address_of
from labkit.transport import datagrams

_SERVE = "import sys; from labkit.forking.server import Server, listen; Server(listen(sys.argv[1])).serve()()"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("forkserver") / "socket"
    with serving(path):
        yield str(path)


@contextmanager
def serving(path: Path | str) -> Iterator[subprocess.Popen[bytes]]:
    """A forkserver that listens at `path`, or at a name after `@`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-P", "-c", _SERVE, str(path)], env=environment) as process:
        wait_until(lambda: process.poll() is not None or listens(path))
        assert process.poll() is None
        yield process
        process.kill()


def listens(path: Path | str) -> bool:
    """Whether somebody does: the socket has its name before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(address_of(str(path))) == 0


def started(
    address: str, program: str, output: int, arguments: Any = None, more: tuple[int, ...] = (), **own: str
) -> client.ForkedProcess:
    asked = Request(getattr(forked_programs, program), arguments, own, "/", "a tested program", prints=True)
    return client.fork(asked, [output, *more], address)


def printed(address: str, program: str, path: Path, **own: str) -> str:
    with path.open("wb") as output:
        assert started(address, program, output.fileno(), **own).wait(BROKEN_SECONDS) == 0
    return path.read_text()


def test_a_process_has_what_was_asked_for_and_nothing_of_the_forkserver_s(address: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    with (tmp_path / "output").open("wb") as output:
        process = started(address, "report", output.fileno(), {"a": [1]}, (write,), COLOUR="blue")
        os.close(write)
        assert process.wait(BROKEN_SECONDS) == 0 == process.poll() == process.returncode
    with open(read, "rb") as file:
        assert file.read() == b"written"  # the forkserver has not kept the other end
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


def test_without_a_forkserver_its_client_says_so(tmp_path: Path) -> None:
    asked = Request(forked_programs.end, 0)
    with pytest.raises(client.NoForkServer, match="no forkserver is running here"):
        client.fork(asked, [], "")
    with pytest.raises(client.NoForkServer, match="does not answer"):
        client.fork(asked, [], str(tmp_path / "nothing"))


def test_what_cannot_be_imported_is_refused_and_harms_no_other(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        datagrams.send(connection, Request(forked_programs.end, 0).to_message() | {"load": ["nothing_here:load"]})
        answer, _ = datagrams.receive(connection)
        assert answer == {"error": "ModuleNotFoundError: No module named 'nothing_here'"}
    assert started(address, "end", 1, 0).wait(BROKEN_SECONDS) == 0


HELD = """
import os, socket, sys
from labkit.forking.server import Server
program = Server(socket.socket(fileno=int(sys.argv[1])), patience=1e6).serve()
program and program()
os._exit(0)
"""


@pytest.fixture
def held_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[held.HeldForkServer]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def launch(control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-c", HELD, str(control.fileno())]
        return subprocess.Popen(command, stdout=errors, stderr=errors, pass_fds=[control.fileno()])

    server = held.HeldForkServer(launch, BROKEN_SECONDS)
    yield server
    process = server.process
    server.close()
    assert process is not None and process.poll() == 0, "it has ended by itself, with all that it has forked"


def test_one_that_is_held_is_started_again_when_it_has_ended(held_server: held.HeldForkServer) -> None:
    assert held_server.fork(Request(forked_programs.end, 3)).wait(BROKEN_SECONDS) == 3
    lost = held_server.fork(Request(forked_programs.last, signal=signal.SIGKILL))
    assert held_server.process is not None
    held_server.process.kill()
    assert lost.wait(BROKEN_SECONDS) == -signal.SIGKILL and lost.lost
    held_server.wait(BROKEN_SECONDS)
    assert held_server.fork(Request(forked_programs.end, 4)).wait(BROKEN_SECONDS) == 4
    assert held_server.starts == 2


def test_requests_with_a_preparation_share_a_server_that_has_run_it(
    held_server: held.HeldForkServer, tmp_path: Path
) -> None:
    def prepared(name: str, prepare: bool) -> list[str]:
        with (tmp_path / name).open("wb") as output:
            asked = Request(forked_programs.preparations, prints=True)
            if prepare:
                asked = replace(asked, prepare=forked_programs.prepare)
            assert held_server.fork(asked, [output.fileno()]).wait(BROKEN_SECONDS) == 0
        return (tmp_path / name).read_text().split()

    count, _ = prepared("plain", prepare=False)
    assert count == "0"
    (first, server), (second, same) = prepared("one", prepare=True), prepared("two", prepare=True)
    assert (first, second) == ("1", "1") and server == same


def test_another_user_is_refused_where_the_name_is_open_to_all() -> None:
    name = f"@labkit-test-{secrets.token_hex(8)}"
    request = Request(forked_programs.end, 0)

    def ask() -> str:
        try:
            return f"forked {client.fork(request, [], name).pid}"
        except client.NoForkServer as refused:
            return str(refused)

    with unix_users("eve") as users, serving(name):
        assert "this forkserver serves its own user alone" in call_as(users.names[0], ask)
        assert ask().startswith("forked ")
