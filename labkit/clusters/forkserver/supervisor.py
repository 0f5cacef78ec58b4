"""The process between the client and the ranks: forks them, passes on their output and reports, and ends them.

It ends everything below it, including grandchildren, when all have ended, when the client is gone, on a timeout, and a
short while after a process has failed. It has a session of its own and adopts orphans, so no process escapes.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from labkit.clusters.forkserver import progress, request, scratch, stack_dumps
from labkit.clusters.forkserver.activity_monitor import ActivityMonitor
from labkit.clusters.forkserver.child_process import ChildProcess, fork
from labkit.clusters.forkserver.processes_ahead import ProcessesAhead
from labkit.clusters.forkserver.rank_process import Beginning
from labkit.clusters.forkserver.relay import Relay
from labkit.forking.spares import taken
from labkit.hub import notices
from labkit.linux import prctl, proc, processes, shared_memory
from labkit.linux.clock import wait_seconds

FAILURE_GRACE_SECONDS = 1.5
"""Time that the other processes may go on after one has failed: enough to notice it and report it."""
SAVING_SECONDS = 5.0
"""Time that they then have to end, if they handle SIGTERM."""
_CLEAN_UP_SECONDS = 2.0


def supervise(_: None, own: list[int]) -> NoReturn:
    """Be the supervisor of the run requested on the socket `own[0]`, and end."""
    try:
        prctl.adopt_orphans()
        connection = socket.socket(fileno=own[0])
        asked, sockets = request.receive(connection)
        (asked.supervisor or Supervisor)(connection, asked).serve(sockets)
    except EOFError:
        pass
    finally:
        os._exit(0)


def supervise_ahead(arguments: Mapping[str, Any], own: list[int]) -> NoReturn:
    """Fork `arguments["count"]` processes; then be the supervisor of the run that `own[0]` brings, and end."""
    try:
        prctl.adopt_orphans()
        gc.freeze()
        processes = ProcessesAhead(arguments["count"])
        (descriptor,) = taken(own[0])
        connection = socket.socket(fileno=descriptor)
        asked, sockets = request.receive(connection)
        Supervisor(connection, asked, processes).serve(sockets)
    except EOFError:
        pass
    finally:
        os._exit(0)


class Supervisor(Relay):
    """Supervises the processes of one run. Subclasses may override `_begin` and `_process_ended`."""

    def __init__(self, connection: socket.socket, asked: request.Request, ahead: ProcessesAhead | None = None) -> None:
        """ahead: processes that have been forked already."""
        super().__init__(connection)
        self._asked = asked
        self._ahead = ahead
        self._shared = os.memfd_create("shared") if ahead is None else ahead.shared
        self._board = progress.Board(len(asked.ranks)) if ahead is None else ahead.board
        # virtual ranks, many per process, detect hangs themselves
        watched = all(len(hosted) <= 1 for hosted in asked.ranks)
        self._clock = asked.clock
        self._activity = ActivityMonitor(self._board, asked.job.hang_timeout if watched else None, self._clock)
        self._began = time.monotonic()
        self._killed_for_memory = proc.killed_for_memory()
        self._terminated = False
        self._told_to_end = False
        self._scratch: str | None = None
        self._stopped = ""
        self._deadlines: dict[str, float] = {}
        """Reason to stop -> its time, on the request's clock."""

    def serve(self, sockets: list[int]) -> None:
        wake_up = self._listen()
        signal.signal(signal.SIGTERM, self._terminate)
        # a timeout may come before the process has set its handler for SIGUSR1
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # the wall clock is the only one that several machines have in common
        self._send({"kind": "started", "time": time.time() - (time.monotonic() - self._began)})
        if self._asked.entry.load is not None:
            self._asked.entry.load()
        gc.freeze()
        if self._is_withdrawn():
            return
        self._scratch = scratch.make(self._asked.environment or os.environ)
        scratch.use(self._scratch)
        self._begin(sockets)
        if self._asked.timeout is not None:
            self._deadlines["timeout"] = self._clock() + self._asked.timeout
        try:
            while not self._is_over():
                self._step(wake_up)
            if not self._client_gone:
                self._report_stacks()
                if self._stopped == "failure":
                    self._tell_to_end(wake_up)
        finally:
            self._end()

    def _is_withdrawn(self) -> bool:
        """Whether the client has gone before any process exists: it was interrupted while torch was imported."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def _tell_to_end(self, wake_up: int) -> None:
        """Send SIGTERM to the others and give them time to save their state, as torchrun does when a rank fails."""
        self._told_to_end = True
        running = [p for p in self._processes.values() if p.status is None]
        for process in running:
            os.kill(process.pid, signal.SIGTERM)
        limit = self._clock() + SAVING_SECONDS
        self._deadlines = {"killed": limit}
        while any(p.status is None for p in running) and self._clock() < limit and not self._client_gone:
            self._step(wake_up)

    def _begin(self, sockets: list[int]) -> None:
        """Start the processes."""
        for index in range(len(self._asked.ranks)):
            self._start(self._asked, index, sockets[index] if sockets else None)
        for descriptor in sockets:
            os.close(descriptor)

    def _start(self, asked: request.Request, index: int, sock: int | None) -> None:
        """Start process `index` of the request."""
        process = self._ahead and self._ahead.begin(Beginning(asked, index, self._began, self._scratch))
        self._watch(process or fork(asked, index, sock, self._shared, self._board, self._began))

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _is_over(self) -> bool:
        now = self._clock()
        self._stopped = next((reason for reason, at in self._deadlines.items() if at <= now), "")
        if self._terminated:
            self._stopped = "terminated"
        ended = all(p.status is not None for p in self._processes.values())
        return ended or bool(self._stopped) or self._client_gone

    def _step(self, wake_up: int) -> None:
        self._attend(wake_up, wait_seconds(self._clock, *self._deadlines.values(), self._activity.next_look))
        self._listen_for_life()

    def _listen_for_life(self) -> None:
        """Report to the client when activity ends, with the places of all processes, and when it resumes."""
        if not self._reading:  # they may wait for the client to read their output
            self._activity.broken()
        change = self._activity.look({p.index: p.pid for p in self._processes.values() if p.status is None})
        if change == "quiet":
            self._report_stacks()
        if change:
            self._send({"kind": change})

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Carry out the client's requests: `input` and `interrupt` for one process, `stacks` and `end` for all.

        `limit` sets the seconds from now after which all are stopped; None: never.
        """
        kind = header["kind"]
        if kind == "limit":
            self._deadlines.pop("timeout", None)
            if header["seconds"] is not None:
                self._deadlines["timeout"] = self._clock() + header["seconds"]
            return
        if kind == "stacks":
            self._report_stacks()
            return
        if kind == "end":
            # as if one of these processes had failed: all report where they were
            self._deadlines["failure"] = self._clock()
            return
        process = self._processes[header["process"]]
        if process.status is not None:
            return
        if kind == "input":
            process.unsent += payload
            self._hand_over(process)
        elif kind == "interrupt":
            os.kill(process.pid, signal.SIGINT)

    def _reap(self) -> None:
        """Reap every child that has ended: processes of the run, and adopted orphans."""
        for pid, status in processes.ended_children():
            for process in self._processes.values():
                if process.pid == pid:
                    process.status = os.waitstatus_to_exitcode(status)
                    self._drain(process)
                    if process.status < 0 and os.fstat(process.stacks).st_size > process.told_stacks:
                        self._send_stacks(process)
                    self._process_ended(process, process.status)

    def _process_ended(self, process: ChildProcess, status: int) -> None:
        """Called when a process has ended by itself."""
        self._activity.broken()
        if status != 0:
            self._deadlines.setdefault("failure", self._clock() + FAILURE_GRACE_SECONDS)
        self._say_exit(process, self._own_status(status))

    def _say_exit(self, process: ChildProcess, status: int | None) -> None:
        """Report to the client how a process has ended, with details for one that could not report them itself."""
        last = self._board.last(process.index)
        began = time.time() - (time.monotonic() - self._began)
        self._send(
            {
                "kind": "exit",
                "process": process.index,
                "status": status,
                "seconds": time.monotonic() - self._began,
                "last": last.place if last and status else "",
                "out_of_memory": status == -signal.SIGKILL and proc.killed_for_memory() > self._killed_for_memory,
                "notice": " ".join(notices.since(began)) if status == -signal.SIGKILL else "",
            }
        )

    def _own_status(self, status: int) -> int | None:
        """The status; None for a process that was stopped, as that is not its fault."""
        stopped = self._told_to_end and status in (-signal.SIGTERM, -signal.SIGKILL)
        return None if stopped else status

    def _moves(self) -> None:
        self._activity.broken()

    def _report_stacks(self) -> None:
        """Request the stacks of every running process."""
        running = [p for p in self._processes.values() if p.status is None]
        stack_dumps.request(running, self._send_stacks, self._clock)

    def _send_stacks(self, process: ChildProcess) -> None:
        self._send(
            {"kind": "stacks", "process": process.index}, stack_dumps.location(process, self._board, self._asked.job)
        )

    def _end(self) -> None:
        # a forkserver that ends sends it, too; what it asks for is being done
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        running = any(process.status is None for process in self._processes.values())
        memory = shared_memory.held_by(processes.stop_descendants()) if running else set()
        for process in self._processes.values():
            if process.status is None:
                os.kill(process.pid, signal.SIGKILL)
        stopped = [p for p in self._processes.values() if p.status is None]
        for process in stopped:
            _, status = os.waitpid(process.pid, 0)
            process.status = os.waitstatus_to_exitcode(status)
        processes.kill_descendants(_CLEAN_UP_SECONDS, clock=self._clock)
        scratch.remove(self._scratch)
        shared_memory.remove(memory, time.time() - (time.monotonic() - self._began))
        if self._client_gone:
            return
        for process in self._processes.values():
            self._drain(process)
        for process in stopped:
            ended_itself = process.status != -signal.SIGKILL
            self._send({"kind": "exit", "process": process.index, "status": process.status if ended_itself else None})
        self._send({"kind": "end", "stopped": self._stopped})
        self._connection.setblocking(True)
        self._connection.settimeout(60)
        if self._pending:
            self._connection.sendall(self._pending)
