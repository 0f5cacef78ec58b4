"""A forkserver's loop: forks a process for each request, and tells the client how that process ends.

A request is one datagram with descriptors: the process's own, and for a server with one client, before them, the
connection on which the client is told. The answers are the PID and, when the process has ended, its exit status.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from multiprocessing.process import current_process
from typing import Any

import numpy as np

from labkit.forking import request
from labkit.forking.request import MAX_DESCRIPTORS, Load, address_of, function_of, name_of
from labkit.forking.spares import Spares
from labkit.linux import descriptors, huge_pages, prctl, processes, sockets
from labkit.linux.clock import Clock, wait_seconds
from labkit.transport import datagrams

_REQUEST_SECONDS = 5.0
"""Time that a client who has connected has for its request, in which no other is served."""
_QUIET_SECONDS = 2.0
"""Time without requests after which a server begins with what makes later processes start faster, spares at last."""
_LOOK_SECONDS = 2.0
"""Time between two looks whether any process is left."""
_AUTHENTICATION_BYTES = 32

Forked = Callable[[], object]
"""What a forked process is to run."""


class _Event(Enum):
    REQUEST = auto()
    IDLE = auto()
    """Nothing has come for too long."""
    SPARE = auto()
    """There is time to fork the spare that is missing."""


class Server:
    """A forkserver. Has one thread, and must not have touched CUDA: a fork copies neither threads nor a CUDA context.

    door: a listening socket, on which each connection brings one request; or a socket whose peer one client holds, and
        whose end is the server's.
    meanwhile: work to do, one step at a time, while it is idle.
    prepared: the preparation that has been run in this process. Requests with another one each get a server of their
        own, forked when the first comes, or at once for those in `prepared_ahead`.
    idle_seconds: `serve` returns, too, so long after the last request, once no process is left.
    patience: seconds that processes have to end once the client is gone; then they are killed. None: it does not wait.
    on_killed: called with the PID of a process that a signal has ended, when everything that it has left was killed.
        None: what it leaves belongs to others.
    clock: that of all waits here.
    """

    def __init__(
        self,
        door: socket.socket,
        *,
        meanwhile: Iterable[object] = (),
        prepared: Load | None = None,
        prepared_ahead: Sequence[Load] = (),
        idle_seconds: float | None = None,
        patience: float | None = None,
        on_killed: Callable[[int], None] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._door = door
        self._listens = bool(door.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        self._meanwhile = iter(meanwhile)
        self._prepared = None if prepared is None else name_of(prepared)
        self._prepared_ahead = [name_of(one) for one in prepared_ahead]
        self._idle_seconds = idle_seconds
        self._patience = patience
        self._on_killed = on_killed
        self._clock = clock
        self._loaded: set[str] = set()
        self._children: set[int] = set()
        self._twins: dict[str, tuple[int, socket.socket]] = {}
        """Servers with another preparation: PID, and where they take requests."""
        self._clients: dict[int, socket.socket] = {}
        """Where to tell the end of a process, by its PID."""
        self._spares = Spares()

    def serve(self) -> Forked | None:
        """Fork a process for each request.

        Returns what is to be run, in forked processes; None in the server, when its client is gone or nothing has come
        for `idle_seconds`.
        """
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self._on_killed is not None:
            # what a killed process leaves becomes a child of this one
            prctl.adopt_orphans()
        for preparation in self._prepared_ahead:
            if forked := self._fork_twin(preparation):
                return forked
        self._last = self._clock()
        while (event := self._wait()) is not _Event.IDLE:
            if event is _Event.SPARE:
                forked = self._fork_spare()
            else:
                message, connection, own = self._receive()
                self._last = self._clock()
                if message is None and not self._listens:
                    self._outlive_client()
                    return None
                forked = None if message is None else self._answer(message, connection, own)
            if forked is not None:
                return forked
        return None  # a request that comes now is lost with the door: the client notices, and starts another server

    def _wait(self) -> _Event:
        """Wait for something to do; meanwhile tell how processes have ended, and work.

        Work begins after some quiet time: a server that is used only once need not do it.
        """
        limit = None if self._idle_seconds is None else self._last + self._idle_seconds
        quiet = _QUIET_SECONDS if self._idle_seconds is None else min(_QUIET_SECONDS, self._idle_seconds)
        if self._comes(quiet):
            return _Event.REQUEST
        for _ in self._meanwhile:
            if self._comes(0.0):
                return _Event.REQUEST
        while self._spares.missing is not None and self._children - {pid for pid, _ in self._twins.values()}:
            # ranks that train need cores and memory themselves
            if self._comes(_LOOK_SECONDS):
                return _Event.REQUEST
        if self._spares.missing is not None:
            return _Event.SPARE
        while limit is None or (left := limit - self._clock()) > 0 or self._children - {self._spares.pid}:
            seconds = None if limit is None else left if left > 0 else _LOOK_SECONDS
            if self._comes(seconds):
                return _Event.REQUEST
        return _Event.IDLE

    def _comes(self, seconds: float | None) -> bool:
        """Whether a request comes within `seconds`."""
        limit = None if seconds is None else self._clock() + seconds
        while True:
            wait = wait_seconds(self._clock, limit)
            ready = select.select([self._door.fileno(), self._woken], [], [], wait)[0]
            if self._woken in ready:
                self._reap()
            if self._door.fileno() in ready:
                return True
            if limit is not None and self._clock() >= limit:
                return False

    def _receive(self) -> tuple[dict[str, Any] | None, socket.socket | None, list[int]]:
        """Return a message, its client's connection and its descriptors. The message is None if there is none."""
        if not self._listens:
            message, own = datagrams.receive(self._door, MAX_DESCRIPTORS)
            return message, socket.socket(fileno=own.pop(0)) if own else None, own
        connection, _ = self._door.accept()
        connection.settimeout(_REQUEST_SECONDS)
        try:
            if sockets.peer_user(connection) not in (0, os.geteuid()):  # a name after @ is protected by nothing else
                raise ValueError("this forkserver serves its own user alone")
            message, own = datagrams.receive(connection, MAX_DESCRIPTORS)
        except (OSError, ValueError) as problem:
            _tell(connection, {"error": str(problem)})
            message, own = None, []
        return message, connection, own

    def _answer(self, message: dict[str, Any], connection: socket.socket | None, own: list[int]) -> Forked | None:
        """Do what the client wants. Returns what is to be run, in a forked process."""
        if connection is None:  # it only says what it will request
            self._load(message)
            self._spares.expect(message["ahead"])
            return None
        try:
            request.check(message)
            self._load(message)
            preparation = message["prepare"]
            if preparation is not None and preparation != self._prepared:
                return self._hand_on(preparation, message, connection, own)
            ahead = message["ahead"]
            pid = None if ahead is None else self._spares.take(ahead, own)
            if pid is None:
                parent = os.getpid()
                pid = self._fork()
                if pid == 0:
                    connection.close()
                    return partial(_become, message, own, parent)
            self._spares.expect(ahead)
        except Exception as problem:
            _tell(connection, {"error": f"{type(problem).__name__}: {problem}"})
            connection.close()
        else:
            _tell(connection, {"pid": pid})
            self._clients[pid] = connection
        for descriptor in own:
            os.close(descriptor)
        return None

    def _fork(self) -> int:
        """Fork a child. In it, nothing is left of what only the server has."""
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return pid
        try:
            start_afresh()
            for held in (self._door, *self._clients.values(), *(door for _, door in self._twins.values())):
                held.close()
            self._spares.leave()
            os.close(self._woken)
            os.close(self._waking)
        except BaseException:  # it must not go on as a second server
            traceback.print_exc()
            os._exit(1)
        return 0

    def _load(self, message: Mapping[str, Any]) -> None:
        """Import and run what the message names, unless that has been done."""
        wanted = {*message["imports"], *message["load"]}
        if wanted <= self._loaded:
            return
        for name in message["imports"]:
            function_of(name)
        for name in message["load"]:
            if name not in self._loaded:
                function_of(name)()
        self._loaded |= wanted
        share()
        self._spares.dismiss()

    def _fork_spare(self) -> Forked | None:
        assert self._spares.missing is not None
        missing, parent = self._spares.missing, os.getpid()
        ours, theirs = datagrams.pair()
        pid = self._fork()
        if pid == 0:
            ours.close()
            return partial(_become, {**_PLAIN, **missing}, [theirs.detach()], parent)
        theirs.close()
        self._spares.have(pid, ours)
        return None

    def _hand_on(
        self, preparation: str, message: dict[str, Any], connection: socket.socket, own: list[int]
    ) -> Forked | None:
        """Pass the request on to the server with that preparation; fork one if there is none."""
        for _ in range(2):
            if preparation not in self._twins and (forked := self._fork_twin(preparation, connection, own)):
                return forked
            try:
                datagrams.send(self._twins[preparation][1], message, [connection.fileno(), *own])
            except OSError:  # it has ended
                self._twins.pop(preparation)[1].close()
            else:
                break
        connection.close()
        for descriptor in own:
            os.close(descriptor)
        return None

    def _fork_twin(
        self, preparation: str, connection: socket.socket | None = None, own: Sequence[int] = ()
    ) -> Forked | None:
        """Fork a server with that preparation. Returns what is to be run, in processes that it forks.

        connection, own: of the request that needs it.
        """
        parent = os.getpid()
        ours, theirs = datagrams.pair()
        pid = self._fork()
        if pid:
            theirs.close()
            self._twins[preparation] = pid, ours
            return None
        forked = None
        try:
            prctl.die_with_parent(parent)
            ours.close()
            if connection is not None:
                connection.close()
            for descriptor in own:
                os.close(descriptor)
            prepare = function_of(preparation)
            prepare()
            share()
            for _ in huge_pages.collapse():
                pass  # done at once: many forks follow, and wait for it
            forked = Server(
                theirs, prepared=prepare, idle_seconds=self._idle_seconds, on_killed=self._on_killed, clock=self._clock
            ).serve()
        except Exception:  # its output is reported to the client
            traceback.print_exc()
        if forked is None:
            os._exit(0)
        return forked

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for pid, status in processes.ended_children():
            if pid not in self._children:
                continue
            self._children.discard(pid)
            if (connection := self._clients.pop(pid, None)) is not None:
                _tell(connection, {"status": os.waitstatus_to_exitcode(status)})
                connection.close()
            if os.WIFSIGNALED(status) and self._on_killed is not None:
                processes.kill_children_except(self._children)
                self._on_killed(pid)

    def _outlive_client(self) -> None:
        """Wait until all processes have ended, and end those that need too long."""
        for _, door in self._twins.values():
            door.close()  # this server is their client
        if self._patience is None:
            return
        limit = self._clock() + self._patience
        while self._children and self._clock() < limit:
            select.select([self._woken], [], [], wait_seconds(self._clock, limit))
            self._reap()
        for pid in self._children:
            processes.send_signal(pid, signal.SIGKILL)


def listen(address: str) -> socket.socket:
    """Return a listening socket. address: see `address_of`."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened.bind(address_of(address))
    opened.listen(128)
    return opened


def _tell(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it no longer wants to know
        datagrams.send(connection, message)


_PLAIN: Mapping[str, Any] = {
    "environment": None,
    "folder": None,
    "name": None,
    "prints": False,
    "inherits": False,
}
"""What a spare has in common with the server."""


def _become(message: Mapping[str, Any], given: list[int], parent: int) -> object:
    """Be the process of a request."""
    if message["signal"]:
        prctl.die_with_parent(parent, message["signal"])
    own = given
    if message["prints"]:
        output, *own = given
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, standard in ((null, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, standard)
    if not message["inherits"]:
        descriptors.close_all_but([0, 1, 2, *own])
    for descriptor in own:
        os.set_inheritable(descriptor, False)
    os.setsid()
    if message["name"] is not None:
        prctl.set_name(message["name"])
    if message["environment"] is not None:
        os.environ.clear()
        os.environ.update(message["environment"])
    if message["folder"] is not None:
        os.chdir(message["folder"])
    return function_of(message["program"])(message["arguments"], own)


def start_afresh() -> None:
    """Undo what a forked process has of its server: its signals, and what only one process should have."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    current_process().authkey = os.urandom(_AUTHENTICATION_BYTES)
    tempfile.tempdir = None
    np.random.seed()
    gc.enable()


def share() -> None:
    """Keep what exists now shared between all forks: the collector, which writes into objects, no longer visits it."""
    gc.collect()
    gc.freeze()
