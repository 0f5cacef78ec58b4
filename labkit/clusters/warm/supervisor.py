"""The process between the client and the ranks: forks them, passes on what they print and report, and ends them.

It ends everything below it, grandchildren too, when all have ended, when the client is gone, when time is up, and a
short while after a process has failed. It has a session of its own and adopts orphans, so nothing slips away.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from typing import Any, NoReturn

from labkit.clusters.warm import fresh, processes, progress, request, scratch, shared_memory, whereabouts
from labkit.clusters.warm.forked import Process, fork
from labkit.clusters.warm.relay import Relay
from labkit.clusters.warm.silence import Silence

FAILURE_GRACE_SECONDS = 1.5
"""How long the other processes may go on when one has failed: enough to notice it, and to say so."""
SAVING_SECONDS = 5.0
"""How long they may then take to end, when they have asked for SIGTERM."""
_CLEAN_UP_SECONDS = 2.0


def supervise(connection: socket.socket) -> NoReturn:
    """Serve the run that is asked for on `connection`, and end."""
    try:
        os.setsid()
        processes.adopt_orphans()
        asked, sockets = request.receive(connection)
        fresh.named(asked.supervisor)(connection, asked).serve(sockets)
    except EOFError:
        pass
    finally:
        os._exit(0)


class Supervisor(Relay):
    """Keeps the processes of one run. A kind of run may have its own way to `_begin` and of `_process_ended`."""

    def __init__(self, connection: socket.socket, asked: request.Request) -> None:
        super().__init__(connection)
        self._asked = asked
        self._shared = os.memfd_create("shared")
        self._board = progress.Board(len(asked.ranks))
        # virtual ranks, many to a process, find out by themselves
        watched = all(len(hosted) <= 1 for hosted in asked.ranks)
        self._silence = Silence(self._board, asked.job.hang_timeout if watched else None)
        self._began = time.monotonic()
        self._killed_for_memory = processes.killed_for_memory()
        self._terminated = False
        self._told_to_end = False
        self._scratch: str | None = None
        self._stopped = ""
        self._deadlines: dict[str, float] = {}
        """Reason to stop -> when, on the monotonic clock."""

    def serve(self, sockets: list[int]) -> None:
        wake_up = self._listen()
        signal.signal(signal.SIGTERM, self._terminate)
        # a time-out may come before the process has said what SIGUSR1 should do
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # by the wall clock: it is the only one that several machines have in common
        self._send({"kind": "started", "time": time.time() - (time.monotonic() - self._began)})
        fresh.entry_function(self._asked.entry)
        gc.freeze()
        self._scratch = scratch.make(self._asked.environment or os.environ)
        self._begin(sockets)
        if self._asked.timeout is not None:
            self._deadlines["timeout"] = time.monotonic() + self._asked.timeout
        try:
            while not self._is_over():
                self._step(wake_up)
            if not self._client_gone:
                self._report_stacks()
                if self._stopped == "failure":
                    self._tell_to_end(wake_up)
        finally:
            self._end()

    def _tell_to_end(self, wake_up: int) -> None:
        """As torchrun does when a rank has failed: the others get SIGTERM, and have time to save what they must."""
        self._told_to_end = True
        running = [p for p in self._processes.values() if p.status is None]
        for process in running:
            os.kill(process.pid, signal.SIGTERM)
        limit = time.monotonic() + SAVING_SECONDS
        self._deadlines = {"killed": limit}
        while any(p.status is None for p in running) and time.monotonic() < limit and not self._client_gone:
            self._step(wake_up)

    def _begin(self, sockets: list[int]) -> None:
        """Start the processes."""
        for index in range(len(self._asked.ranks)):
            self._start(self._asked, index, sockets[index] if sockets else None)
        for descriptor in sockets:
            os.close(descriptor)

    def _start(self, asked: request.Request, index: int, sock: int | None) -> None:
        """Fork process `index` for what is asked."""
        self._watch(fork(asked, index, sock, self._shared, self._board, self._began))

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _is_over(self) -> bool:
        now = time.monotonic()
        self._stopped = next((reason for reason, at in self._deadlines.items() if at <= now), "")
        if self._terminated:
            self._stopped = "terminated"
        ended = all(p.status is not None for p in self._processes.values())
        return ended or bool(self._stopped) or self._client_gone

    def _step(self, wake_up: int) -> None:
        times = [*self._deadlines.values()]
        if self._silence.next_look is not None:
            times.append(self._silence.next_look)
        wait = max(0.0, min(times) - time.monotonic()) if times else None
        self._attend(wake_up, wait)
        self._listen_for_life()

    def _listen_for_life(self) -> None:
        """Tell the client when nothing moves any more, with where everybody is, and when something does again."""
        if not self._reading:  # they may wait for the client to take what they print
            self._silence.broken()
        change = self._silence.look({p.index: p.pid for p in self._processes.values() if p.status is None})
        if change == "quiet":
            self._report_stacks()
        if change:
            self._send({"kind": change})

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """What the client may ask for: `input` and `interrupt` of one process, `stacks` and the `end` of all.

        `limit` says after how many seconds from now all are stopped; None: never.
        """
        kind = header["kind"]
        if kind == "limit":
            self._deadlines.pop("timeout", None)
            if header["seconds"] is not None:
                self._deadlines["timeout"] = time.monotonic() + header["seconds"]
            return
        if kind == "stacks":
            self._report_stacks()
            return
        if kind == "end":
            # as if one of these processes had failed: all are told where they were
            self._deadlines["failure"] = time.monotonic()
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
        """Take in every child that has ended: processes of the run, and orphans that were adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for process in self._processes.values():
                if process.pid == pid:
                    process.status = os.waitstatus_to_exitcode(status)
                    self._drain(process)
                    if process.status < 0 and os.fstat(process.stacks).st_size > process.told_stacks:
                        self._send_stacks(process)
                    self._process_ended(process, process.status)

    def _process_ended(self, process: Process, status: int) -> None:
        """A process has ended by itself."""
        self._silence.broken()
        self._say_exit(process, self._own_status(status))
        if status != 0:
            self._deadlines.setdefault("failure", time.monotonic() + FAILURE_GRACE_SECONDS)

    def _say_exit(self, process: Process, status: int | None) -> None:
        """Tell the client how a process has ended, and what is known of one that could not say it."""
        last = self._board.last(process.index)
        self._send(
            {
                "kind": "exit",
                "process": process.index,
                "status": status,
                "seconds": time.monotonic() - self._began,
                "last": last.place if last and status else "",
                "out_of_memory": status == -signal.SIGKILL and processes.killed_for_memory() > self._killed_for_memory,
            }
        )

    def _own_status(self, status: int) -> int | None:
        """None for a process that was stopped: of that there is nothing to blame it for."""
        stopped = self._told_to_end and status in (-signal.SIGTERM, -signal.SIGKILL)
        return None if stopped else status

    def _moves(self) -> None:
        self._silence.broken()

    def _report_stacks(self) -> None:
        """Ask every process that is still running where it is."""
        whereabouts.ask([p for p in self._processes.values() if p.status is None], self._send_stacks)

    def _send_stacks(self, process: Process) -> None:
        self._send({"kind": "stacks", "process": process.index}, whereabouts.of(process, self._board, self._asked.job))

    def _end(self) -> None:
        running = any(process.status is None for process in self._processes.values())
        memory = shared_memory.held_by(processes.stop_descendants()) if running else set()
        for process in self._processes.values():
            if process.status is None:
                os.kill(process.pid, signal.SIGKILL)
        stopped = [p for p in self._processes.values() if p.status is None]
        for process in stopped:
            _, status = os.waitpid(process.pid, 0)
            process.status = os.waitstatus_to_exitcode(status)
        processes.kill_descendants(_CLEAN_UP_SECONDS)
        scratch.remove(self._scratch)
        shared_memory.remove(memory)
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
