"""Real users of this machine, for tests that run as root: with homes and passwords, removed at the end."""

from __future__ import annotations

import http.client
import importlib
import ipaddress
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

import labkit

PASSWORD = "correct horse"


@dataclass(frozen=True)
class Users:
    """`folder` is one that all users can enter; pytest's are closed to others. Names are new on this machine."""

    folder: Path
    names: tuple[str, ...]

    def home(self, name: str) -> Path:
        return self.folder / "homes" / name


@contextmanager
def unix_users(*names: str) -> Iterator[Users]:
    """Make users with these names before a random part; skip the test where that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("needs root: users of this machine")
    folder = Path(tempfile.mkdtemp(prefix="labkit-users-", dir="/tmp"))
    folder.chmod(0o755)
    users = Users(folder, tuple(f"{name}-{secrets.token_hex(3)}" for name in names))
    (folder / "homes").mkdir()
    try:
        for name in users.names:
            command = ["useradd", "--create-home", "--home-dir", str(users.home(name)), "--shell", "/bin/bash"]
            subprocess.run([*command, name], check=True, capture_output=True)
            users.home(name).chmod(0o700)
            subprocess.run(["chpasswd"], input=f"{name}:{PASSWORD}\n", text=True, check=True, capture_output=True)
        yield users
    finally:
        for name in users.names:
            for process in psutil.process_iter(["username"]):
                if process.info["username"] == name:
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            subprocess.run(["userdel", name], capture_output=True)
        shutil.rmtree(folder)


def as_user(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user, from the root folder."""
    become = ["runuser", "-u", name, "--"]
    return subprocess.run([*become, *command], cwd="/", capture_output=True, text=True)


def lines_that_open(kept: Path, folders: Sequence[Path] = ()) -> str:
    """Return lines of bash, for a mount namespace in which all users reach Python, this lab and `folders`.

    Their parents may be closed, as root's home is. kept: an empty folder.
    """
    shown = [Path(sys.base_prefix), Path(sys.prefix), Path(labkit.__file__).parents[1], *folders]
    closed = {path: _closed(path) for path in shown}
    lines = []
    for number, path in enumerate(path for path in shown if closed[path]):
        lines += [f"mkdir -p {kept}/{number}", f"mount --rbind {shlex.quote(str(path))} {kept}/{number}"]
    for top in sorted({str(found) for found in closed.values() if found}):
        lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(top)}"]
    for number, path in enumerate(path for path in shown if closed[path]):
        quoted = shlex.quote(str(path))
        lines += [f"mkdir -p {quoted}", f"mount --rbind {kept}/{number} {quoted}"]
    return "\n".join(lines)


def mounts_that_open(folders: Iterable[Path]) -> list[str]:
    """Return arguments for bubblewrap, after which all users reach these folders, read-only.

    Their parents may be closed, as root's home is, or covered by what was mounted before.
    """
    mounts: list[str] = []
    made: set[Path] = set()
    for folder in folders:
        closed = _closed(folder)
        for parent in reversed(folder.parents[:-1]):
            kind = "--tmpfs" if parent == closed and parent not in made else "--dir"
            mounts += ["--perms", "0755", kind, str(parent)]  # what bubblewrap makes unasked is closed
            made.add(parent)
        mounts += ["--ro-bind", str(folder), str(folder)]
    return mounts


def etc_of_its_own(covered: Collection[str] = ()) -> list[str]:
    """Return arguments for bubblewrap that show this machine's /etc, without the entries that the caller mounts itself.

    Whatever is mounted over the real /etc/passwd ends as soon as a `useradd` replaces that file: the kernel then takes
    the mount away in all namespaces.
    """
    mounts = ["--perms", "0755", "--tmpfs", "/etc"]
    for path in sorted(Path("/etc").iterdir()):
        if path.is_symlink():
            mounts += ["--symlink", os.readlink(path), str(path)]
        elif path.name not in covered:
            mounts += ["--ro-bind-try", str(path), str(path)]  # such as a lock that is gone
    return mounts


def _closed(path: Path) -> Path | None:
    """Return the first folder on the way to `path` that other users cannot enter, or None."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 1), None)


@dataclass(frozen=True)
class Attempt:
    """What another user has tried on something that belongs to a process, and what that user saw."""

    kind: str
    what: str
    seen: str
    """Empty: nothing."""


def attempts_of_another(
    user: str, pids: Iterable[int], folders: Iterable[Path], secrets_of_them: Iterable[str] = ()
) -> list[Attempt]:
    """Have `user` try everything that those processes of this user have opened, and what lies in `folders`.

    The names are found with this user's own rights: a random name protects nothing here. secrets_of_them: texts that
    may be nowhere where all users look. Needs root.
    """
    targets = _targets(sorted(pids), list(folders))
    "localhost".encode("idna")  # imports what the other user may not be able to read
    for module in (_STORES, _MESSAGES):
        importlib.import_module(module)
    found = call_as(user, lambda: [vars(attempt) for attempt in _try_all(targets, list(secrets_of_them))])
    return [Attempt(**fields) for fields in found]


def call_as(user: str, call: Callable[[], Any]) -> Any:
    """Return what `call` returns, as JSON, in a fork of this process that belongs to `user`. Needs root.

    A fork, not a program: other users need not reach Python. It can import nothing that they cannot read.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            person = pwd.getpwnam(user)
            os.setgroups([])
            os.setresgid(person.pw_gid, person.pw_gid, person.pw_gid)
            os.setresuid(person.pw_uid, person.pw_uid, person.pw_uid)
            text = json.dumps(call())
            with open(write, "w") as pipe:
                pipe.write(text)
            os._exit(0)
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(write)
    with open(read) as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, text
    return json.loads(text)


def table(attempts: Sequence[Attempt]) -> str:
    """Return a row for each kind: how many were tried, and what was seen."""
    rows = ["| tried | number | seen |", "|---|---|---|"]
    for kind in dict.fromkeys(attempt.kind for attempt in attempts):
        of_kind = [attempt for attempt in attempts if attempt.kind == kind]
        seen = [f"{attempt.what}: {attempt.seen}" for attempt in of_kind if attempt.seen]
        rows.append(f"| {kind} | {len(of_kind)} | {'; '.join(seen) or 'nothing'} |")
    return "\n".join(rows)


@dataclass
class _Targets:
    pids: list[int]
    ports: list[tuple[str, int]]
    unix_sockets: list[str]
    files: list[str]
    shared_memory: list[str]


def _targets(pids: list[int], folders: list[Path]) -> _Targets:
    inodes, files = set(), set()
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                link = f"/proc/{pid}/fd/{descriptor}"
                with suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith("socket:["):
                        inodes.add(target[len("socket:[") : -1])
                    elif stat.S_ISREG(os.stat(link).st_mode):
                        files.add(link)
            files |= {f"/proc/{pid}/{name}" for name in ("environ", "maps", "mem", "fd", "cwd", "root", "io", "stack")}
    for folder in folders:
        files |= {str(folder), *(str(path) for path in folder.rglob("*"))}
    ports = []
    for table_name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table_name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, _, port = fields[1].partition(":")
                packed = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
                ports.append((socket.inet_ntop(family, packed), int(port, 16)))
    unix_sockets = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        *fields, name = line.split(maxsplit=7)
        if len(fields) == 7 and fields[6] in inodes:
            unix_sockets.append(name)
    uid = os.geteuid()
    memory = [entry.path for entry in os.scandir("/dev/shm") if entry.stat(follow_symlinks=False).st_uid == uid]
    return _Targets(pids, ports, unix_sockets, sorted(files), memory)


def _try_all(targets: _Targets, secrets_of_them: list[str]) -> Iterator[Attempt]:
    for host, port in targets.ports:
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        for kind, ask in _QUESTIONS.items():
            yield Attempt(f"TCP port, {kind}", f"{host}:{port}", ask(reached, port))
        others = "" if ipaddress.ip_address(host).is_loopback else "open to the network"
        yield Attempt("TCP port, on other interfaces", f"{host}:{port}", others)
    for name in targets.unix_sockets:
        yield Attempt("Unix socket", name, _connected(name))
    for file in targets.files:
        kind = "/proc of a process" if file.startswith("/proc/") else "file"
        yield Attempt(kind, file, _opened(file))
    for file in targets.shared_memory:
        yield Attempt("shared memory", file, _opened(file))
    for pid in targets.pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            shown = Path(f"/proc/{pid}/cmdline").read_text()
            yield Attempt("arguments of a process", str(pid), "a secret" * any(one in shown for one in secrets_of_them))
            yield Attempt("signal to a process", str(pid), _signalled(pid))
    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        fields = line.split()
        open_to_all = int(fields[2], 8) & 0o006
        yield Attempt("System V shared memory", fields[1], "open to all" if open_to_all else "")


def _answer_to(question: bytes) -> Callable[[str, int], str]:
    def ask(host: str, port: int) -> str:
        try:
            with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
                connection.sendall(question)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while data := connection.recv(1 << 16):
                    answer += data
        except OSError:
            return ""
        harmless = not answer or _REFUSAL.match(answer) or len(answer) == _CHALLENGE_BYTES
        return "" if harmless else f"answers {answer[:60]!r}"

    return ask


def _pages_of_jupyter(host: str, port: int) -> str:
    seen = []
    for method, path in _JUPYTER:
        try:
            connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
            connection.request(method, path, "{}" if method == "POST" else None)
            status = connection.getresponse().status
            connection.close()
        except (OSError, http.client.HTTPException):  # no web server
            break
        if status not in (301, 302, 400, 401, 403, 404, 405):
            seen.append(f"{method} {path}: {status}")
    return ", ".join(seen)


def _messages_of_kernel(host: str, port: int) -> str:
    """Return the first message to a subscriber: a kernel welcomes each."""
    zmq = importlib.import_module(_MESSAGES)
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger, socket.rcvtimeo = 0, 1000 * _ANSWER_SECONDS
        socket.subscribe(b"")
        socket.connect(f"tcp://{host}:{port}")
        try:
            return f"sends {socket.recv()[:60]!r}"
        except zmq.Again:
            return ""


def _keys_of_store(host: str, port: int) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # torch's client waits without end for who accepts a connection and says nothing
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_ANSWER_SECONDS)
        with suppress(RuntimeError, ValueError):
            limit = timedelta(seconds=_ANSWER_SECONDS)
            store = importlib.import_module(_STORES).TCPStore(host, port, is_master=False, timeout=limit)
            store.set("left by another user", "1")
            os.write(write, f"a store with {store.num_keys()} keys, into which one was written".encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        seen = pipe.read()
    os.waitpid(child, 0)
    return seen


_STORES, _MESSAGES = "labkit.torch_versions.stores", "zmq"
_ANSWER_SECONDS = 2
"""Time for an answer: what takes longer counts as none, so a slow machine never fails a test."""
_CHALLENGE_BYTES = 32
"""Length of the random number with which the lab's own stores begin."""
_REFUSAL = re.compile(rb"HTTP/1\.[01] (301|302|400|401|403|404|405) |\xff.{8}\x7f(\x03.CURVE\0|$)", re.DOTALL)
"""Beginning of a harmless answer: a refusal, the way to the page of logins, or the greeting of an encrypted socket of a
kernel. A greeting that is cut off says nothing; whether such a socket is encrypted is asked as its client."""
_JUPYTER = (
    *(("GET", f"/api/{name}") for name in ("contents", "kernels", "sessions", "terminals", "config/x", "status")),
    *(("POST", f"/api/{name}") for name in ("contents", "kernels", "terminals", "shutdown")),
    *(("GET", path) for path in ("/lab", "/files/HOME.md", "/metrics", "/labkit/course", "/lab/api/workspaces")),
    *(("GET", path) for path in ("/api/routes", "/hub/home", "/hub/api/users", "/hub/api/info", "/hub/metrics")),
    *(("GET", path) for path in ("/user/ada/api/contents", "/services/small-course/", "/services/classroom/class")),
    *(("POST", path) for path in ("/hub/api/shutdown", "/hub/api/users", "/hub/api/batchspawner")),
)
"""Requests to a notebook's server, a hub and its proxy, which need a login."""
_QUESTIONS: dict[str, Callable[[str, int], str]] = {
    "nothing sent": _answer_to(b""),
    "as a browser": _answer_to(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"),
    "as a browser, for data": _answer_to(b"GET /data HTTP/1.0\r\nHost: attacker.example\r\n\r\n"),
    "as a scraper of metrics": _answer_to(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"),
    "as a browser, for Jupyter's pages": _pages_of_jupyter,
    "as a client of a kernel": _messages_of_kernel,
    "as a debugger": _answer_to(
        b'Content-Length: 59\r\n\r\n{"seq":1,"type":"request","command":"threads","arguments":{}}'
    ),
    "as a client of torch's store": _keys_of_store,
}


def _connected(name: str) -> str:
    address = f"\0{name[1:]}" if name.startswith("@") else name
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
            connection.connect(address)
            return "connected"
    return ""


def _opened(file: str) -> str:
    """Return how the file can be opened; nothing is changed."""
    ways = {"read": os.O_RDONLY, "written": os.O_WRONLY}
    seen = []
    for way, flags in ways.items():
        with suppress(OSError):
            os.close(os.open(file, flags | os.O_NONBLOCK | os.O_NOCTTY))
            seen.append(f"can be {way}")
    if not seen and os.path.isdir(file) and os.access(file, os.W_OK | os.X_OK):
        seen.append("files can be made in it")
    return " and ".join(seen)


def _signalled(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return ""
    return "can be sent one"
