"""The notebook's end: starts the forkserver, requests runs from it, and collects their results."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, Any

from labkit.clusters import hangs
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver import processes_ahead, reports, request, starting
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.forkserver.entry import Entry
from labkit.clusters.forkserver.hang_policy import HangPolicy
from labkit.clusters.forkserver.interrupts import held, let_through
from labkit.clusters.forkserver.notifier import StateNotifier
from labkit.clusters.forkserver.session import Session
from labkit.clusters.forkserver.supervisor import supervise, supervise_ahead
from labkit.clusters.forkserver.time_limit import TimeLimit
from labkit.clusters.job import Job
from labkit.clusters.run import Run
from labkit.command_line.commands import LabFailed
from labkit.forking.client import NoForkServer
from labkit.forking.held import HeldForkServer, Launch
from labkit.forking.request import Ahead, Request, name_of
from labkit.linux.clock import Clock
from labkit.private_folders import cache_environment
from labkit.torch_versions import early_imports
from labkit.transport import datagrams, frames

_START_LIMIT_SECONDS = 120.0
_WHERE_SECONDS = 1.0
"""Time for all ranks to report where they are when they are interrupted."""


class ForkServerDied(LabFailed, RuntimeError):
    """The forkserver ended before the run began; the message includes its last output."""


class ForkServer:
    """A process that has torch imported, and the runs that are forked from it. Runs may overlap.

    command_prefix: put before the Python command, for a sandbox (`bwrap ... --`); it must pass open files on.
    environment: that of the forkserver and of all ranks. None: each run uses this process's environment, working
        directory and `sys.path` at its start.
    max_bytes: bound on the values and traces of one run together; beyond it the rank gets a `MalformedReport`.
    clock: clock for the limits kept here: timeouts, `patience`, waits for answers. The wall clock by default.
    supervisor_clock: clock for the limits that the supervisors of runs keep, in processes of their own: hangs, and the
        time that ranks have to end. It is pickled; what other processes read must be the same time.
    patience: seconds that the supervisor of a run has to report a timeout, and to end all processes on request; then
        the forkserver is killed, and any processes that the supervisor leaves end with the sandbox that it is in.
    launch: custom way to start it; receives the socket that `serve` of server.py needs, and a file for its output.
    shares_files: the processes of a run share a file, in which ranks can meet; otherwise they meet on loopback.
    """

    def __init__(
        self,
        command_prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        max_bytes: int = 2 << 30,
        patience: float = 10.0,
        launch: Launch | None = None,
        clock: Clock = time.monotonic,
        supervisor_clock: Clock = time.monotonic,
        shares_files: bool = True,
    ) -> None:
        self.shares_files = shares_files
        self._environment = environment
        self.max_bytes = max_bytes
        self.patience = patience
        self.clock = clock
        self.supervisor_clock = supervisor_clock
        self.server = HeldForkServer(
            launch or partial(starting.launch, command_prefix=command_prefix, environment=environment)
        )
        self._connections: set[socket.socket] = set()
        _all.add(self)

    def start(self) -> None:
        """Start it unless it is running, without waiting: it imports torch in the background."""
        with held():
            self.server.start()

    def expect(self, entry: Entry, count: int) -> None:
        """Have `count` processes for runs of `entry` forked ahead whenever it is idle; see spares.py.

        Does nothing where the environment is fixed: judged code must not reach processes that wait for the next run.
        """
        if self._environment is None:
            with held():
                self.server.expect(_supervisor(entry, early=False, spares=count))

    def run(
        self,
        entry: Entry,
        job: Job,
        *,
        options: Mapping[str, Any],
        ranks: Sequence[Sequence[int]],
        environments: Sequence[Mapping[str, str]],
        sockets: Sequence[socket.socket] = (),
        on_output: OnOutput | None = None,
        on_state: OnState | None = None,
        timeout: float | None = None,
        supervisor: Callable[[socket.socket, request.Request], request.RunSupervisor] | None = None,
    ) -> Run:
        """Run `entry.main(job, i, options, reporter, sock)` in a fresh process for each i until all have ended.

        entry: what it needs is imported in the forkserver once. ranks[i]: the global ranks that process i
        hosts; environments[i]: its additional environment variables. sockets[i]: passed to process i as `sock`; closed
        here as soon as the run has begun. on_output, on_state: called in this thread while the processes run. timeout:
        seconds of `clock` after which all are stopped; each rank's error then includes where it was. supervisor:
        see `request.Request`. When a process fails, the others have a short while to end
        before they are stopped. `KeyboardInterrupt`, or any error in `on_output`, stops all processes and is raised
        again, the first with notes on where all ranks were. Raises `ForkServerDied` if no process could be started.
        """
        asked = self.prepare(
            entry,
            job,
            options=options,
            ranks=ranks,
            environments=environments,
            sockets=len(sockets),
            supervisor=supervisor,
        )
        began = time.monotonic()
        with held():
            session = self.open(asked, sockets)
            collector = Collector(ranks, timeout, on_output, self.max_bytes)
            try:
                notifier, hang_policy = StateNotifier([collector], on_state), HangPolicy(job, [collector], on_state)
                limit = TimeLimit(self.clock, timeout, self.patience)
                stopped = _receive(session, collector, notifier, hang_policy, limit)
            except KeyboardInterrupt as interrupt:
                _note_rank_locations(session, collector, interrupt, self.clock)
                raise
            finally:
                # after an interrupt, an error in on_output, or malformed supervisor messages: no process is left
                session.close()
        return collector.run(time.monotonic() - began, stopped)

    def prepare(
        self,
        entry: Entry,
        job: Job,
        *,
        options: Mapping[str, Any],
        ranks: Sequence[Sequence[int]],
        environments: Sequence[Mapping[str, str]],
        sockets: int = 0,
        timeout: float | None = None,
        commands: bool = False,
        supervisor: Callable[[socket.socket, request.Request], request.RunSupervisor] | None = None,
    ) -> request.Request:
        """A request with this process's environment and folder; see `run` and `request.Request`."""
        own = self._environment is not None
        return request.Request(
            entry=entry,
            job=job,
            options=options,
            ranks=ranks,
            environments=environments,
            sockets=sockets,
            timeout=timeout,
            environment=None if own else {**os.environ, **cache_environment(os.environ)},
            folder=None if own else os.getcwd(),
            path=None if own else list(sys.path),
            commands=commands,
            supervisor=supervisor,
            clock=self.supervisor_clock,
        )

    def open(self, asked: request.Request, sockets: Sequence[socket.socket | IO[bytes]] = ()) -> Session:
        """Begin a run. `sockets[i]` goes to process i and is closed here. Raises `ForkServerDied`.

        Call it with interrupts `held`, until the session has an owner who closes it.
        """
        for _ in range(2):
            with held():
                session = self._attempt(asked, sockets)
                if session is not None:
                    return session
                # it may have ended or died since the last run: retried with a new one once its end is known
                self.server.wait(1.0)
        raise ForkServerDied(f"the process that starts the ranks died: {self.server.last_words()}")

    def _attempt(self, asked: request.Request, sockets: Sequence[socket.socket | IO[bytes]]) -> Session | None:
        """One attempt; None if the forkserver died before the run began."""
        connected = self._connect(asked)
        if connected is None:
            return None
        connection, notices = connected

        def ended(properly: bool) -> None:
            self._connections.discard(connection)
            if not properly:
                self.server.close()

        session = Session(connection, b"", ended, self.patience, self.clock)
        try:
            # a supervisor that was killed may have sent something before
            with contextlib.suppress(BrokenPipeError, ConnectionResetError), let_through():
                request.send(connection, asked, sockets)
            first = session.receive(_START_LIMIT_SECONDS)
            if first is None:
                raise ForkServerDied(f"no process was started within {_START_LIMIT_SECONDS:g} s")
        except KeyboardInterrupt:
            session.withdraw()
            raise
        except BaseException:
            session.close()
            raise
        if not first:
            session.close()
            if refusal := _refusal(notices):
                raise ForkServerDied(f"the process that starts the ranks could not import what they need: {refusal}")
            return None
        # the processes have their copies: the other end must see the end of a process at once
        for handed_over in sockets:
            handed_over.close()
        return Session(connection, first, ended, self.patience, self.clock)

    def _connect(self, asked: request.Request) -> tuple[socket.socket, socket.socket] | None:
        """A connection to a new supervisor, and one for the forkserver's reports on it; None if the latter is dead."""
        ours, theirs = socket.socketpair()
        self._connections.add(ours)
        try:
            with theirs:
                supervisor = _supervisor(asked.entry, asked.early_imports, asked.spares)
                notices = self.server.ask(supervisor, [theirs.fileno()])
        except NoForkServer:
            self._connections.discard(ours)
            ours.close()
            return None
        return ours, notices

    def close(self) -> None:
        """End it, and every run that is under way."""
        with held():
            for connection in list(self._connections):
                with contextlib.suppress(OSError):  # that run has just ended
                    connection.shutdown(socket.SHUT_WR)
            self.server.close()

    def _forget_after_fork(self) -> None:
        """In a forked child: drop the parent's processes and connections, which must close when the parent ends."""
        for connection in self._connections:
            connection.close()
        self._connections = set()
        self.server.forget_after_fork()


def _refusal(notices: socket.socket) -> str:
    """Why the forkserver has not forked a supervisor; empty if it has, or has ended itself."""
    notices.setblocking(False)
    try:
        answer, _ = datagrams.receive(notices)
    except OSError:
        return ""
    return str((answer or {}).get("error", ""))


def _supervisor(entry: Entry, early: bool, spares: int) -> Request:
    """The request for the supervisor of a run. early: whether `early_imports` are wanted, too."""
    ahead = None
    if 0 < spares <= processes_ahead.most():
        ahead = Ahead(supervise_ahead, {"entry": name_of(entry.main), "count": spares}, signal.SIGTERM)
    load = (*([] if entry.load is None else [entry.load]), *([early_imports.load_all] if early else []))
    return Request(
        supervise, signal=signal.SIGTERM, imports=(entry.main,), load=load, prepare=entry.prepare, ahead=ahead
    )


def _receive(
    session: Session, collector: Collector, notifier: StateNotifier, hang_policy: HangPolicy, limit: TimeLimit
) -> str:
    """Feed the collector until the supervisor has ended. Returns why the client had to stop it, or an empty string."""
    while True:
        data = session.receive(limit.left)
        if reason := limit.look([session]):
            return reason
        if data is None:
            continue
        if not data:
            return ""
        try:
            with let_through():
                collector.feed(data)
        except (frames.FrameError, reports.ReportError) as error:
            return f"the process that watches over the ranks sent something malformed: {error}"
        with let_through():
            notifier.look()
            reason = hang_policy.look()
        if reason:
            return reason


def _note_rank_locations(session: Session, collector: Collector, interrupt: KeyboardInterrupt, clock: Clock) -> None:
    """Add each rank's place to `interrupt`, if it reports in time."""
    limit = clock() + _WHERE_SECONDS
    with contextlib.suppress(OSError, frames.FrameError, reports.ReportError):
        collector.forget_places()
        session.send({"kind": "stacks"})
        while not collector.all_places_known and (left := limit - clock()) > 0:
            data = session.receive(left)
            if not data:
                break
            collector.feed(data)
    for line in hangs.report(collector.statuses()):
        interrupt.add_note(line)


_all: weakref.WeakSet[ForkServer] = weakref.WeakSet()
_shared: ForkServer | None = None
_shared_lock = threading.Lock()


def shared() -> ForkServer:
    """The forkserver that all clusters of this program use; it ends with the program."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = ForkServer()
            if begun := starting.taken():
                _shared.server.take_over(begun)
            atexit.register(_shared.close)
        return _shared


def _after_fork() -> None:
    for forkserver in list(_all):
        forkserver._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork)
