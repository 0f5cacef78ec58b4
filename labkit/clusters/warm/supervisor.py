"""The process between the client and the ranks: forks them, passes on what they print and report, and ends them.

It ends everything below it, grandchildren too, when all have ended, when the client is gone, when time is up, and a
short while after a process has failed. It has a session of its own and adopts orphans, so nothing slips away.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from labkit.clusters.warm import frames, fresh, processes, progress, reports, request, scratch, shared_memory
from labkit.clusters.warm.silence import Silence
from labkit.clusters.warm.stacks import threads

FAILURE_GRACE_SECONDS = 1.5
"""How long the other processes may go on when one has failed: enough to notice it, and to say so."""
SAVING_SECONDS = 5.0
"""How long they may then take to end, when they have asked for SIGTERM."""
_CLEAN_UP_SECONDS = 2.0
_CHUNK_BYTES = 256 << 10
_MAX_PENDING_BYTES = 8 << 20
_MAX_COMMAND_BYTES = 4 << 30


@dataclass
class Process:
    """One process of the run."""

    index: int
    pid: int
    streams: dict[int, str]
    """What may be read from it: file descriptor -> `stdout`, `stderr`, `report`."""
    stacks: int
    """The file that its stacks are written into, when it crashes or is asked."""
    commands: int | None
    """Where it can be sent something."""
    told_stacks: int = 0
    """So many bytes of its stacks have been sent on."""
    unsent: bytearray = field(default_factory=bytearray)
    """What it has not yet read of that."""
    status: int | None = None
    """Exit code, or minus the signal's number."""


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


class Supervisor:
    """Keeps the processes of one run. A kind of run may have its own way to `_begin` and of `_process_ended`."""

    def __init__(self, connection: socket.socket, asked: request.Request) -> None:
        self._connection = connection
        self._asked = asked
        self._processes: dict[int, Process] = {}
        """By index."""
        self._selector = selectors.DefaultSelector()
        self._shared = os.memfd_create("shared")
        self._board = progress.Board(len(asked.ranks))
        # virtual ranks, many to a process, find out by themselves
        watched = all(len(hosted) <= 1 for hosted in asked.ranks)
        self._silence = Silence(self._board, asked.job.hang_timeout if watched else None)
        self._began = time.monotonic()
        self._killed_for_memory = processes.killed_for_memory()
        self._heard = frames.Decoder(_MAX_COMMAND_BYTES)
        self._pending = bytearray()
        self._reading = True
        self._client_gone = False
        self._terminated = False
        self._told_to_end = False
        self._scratch: str | None = None
        self._stopped = ""
        self._deadlines: dict[str, float] = {}
        """Reason to stop -> when, on the monotonic clock."""

    def serve(self, sockets: list[int]) -> None:
        wake_up = self._listen()
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

    def _listen(self) -> int:
        """Have signals wake the loop; returns the descriptor on which they do."""
        wake_up, signalled = os.pipe()
        os.set_blocking(wake_up, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        self._connection.setblocking(False)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(wake_up, selectors.EVENT_READ)
        return wake_up

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _start(self, asked: request.Request, index: int, sock: int | None) -> None:
        """Fork process `index` for what is asked."""
        pipes = {kind: os.pipe() for kind in ("stdout", "stderr", "report")}
        dump = os.memfd_create("stacks")
        commands, sending = os.pipe() if asked.commands else (None, None)
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            processes.die_with_parent(supervisor)
            ends = {kind: write for kind, (_, write) in pipes.items()}
            kept = fresh.Descriptors(**ends, stacks=dump, shared=self._shared, socket=sock, commands=commands)
            self._board.leave_others(index)
            fresh.run(asked, index, kept, self._began, self._board.slot(index))
        streams = {}
        for kind, (read, write) in pipes.items():
            os.close(write)
            os.set_blocking(read, False)
            streams[read] = kind
        if commands is not None and sending is not None:
            os.close(commands)
            os.set_blocking(sending, False)
        self._processes[index] = Process(index, pid, streams, dump, sending)
        if self._reading:
            for descriptor in streams:
                self._selector.register(descriptor, selectors.EVENT_READ, self._processes[index])

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
        for key, events in self._selector.select(wait):
            if key.fileobj is self._connection:
                if events & selectors.EVENT_READ:
                    self._hear_client()
                if events & selectors.EVENT_WRITE:
                    self._flush()
            elif key.fd == wake_up:
                os.read(wake_up, 4096)
                self._reap()
            elif callable(key.data):
                key.data()
            elif events & selectors.EVENT_WRITE:
                self._hand_over(key.data)
            else:
                self._pass_on(key.data, key.fd)
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

    def _hear_client(self) -> None:
        try:
            data = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._client_gone = not data
        for header, payload in self._heard.feed(data):
            self._obey(header, payload)

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

    def _hand_over(self, process: Process) -> None:
        """Send a process what it will take; the rest when it has read that."""
        if process.commands is None:
            return
        was_waiting = process.commands in self._selector.get_map()
        try:
            while process.unsent:
                del process.unsent[: os.write(process.commands, memoryview(process.unsent)[:_CHUNK_BYTES].tobytes())]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            process.unsent.clear()
        if process.unsent and not was_waiting:
            self._selector.register(process.commands, selectors.EVENT_WRITE, process)
        elif was_waiting and not process.unsent:
            self._selector.unregister(process.commands)

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

    def _pass_on(self, process: Process, descriptor: int) -> bool:
        """Send on what has come in from a process; False when there was nothing."""
        if descriptor not in process.streams:
            return False
        if process.streams[descriptor] == "report":
            # what was printed before something was reported arrives before it; one read empties a pipe
            for other in [d for d, kind in process.streams.items() if kind != "report"]:
                self._pass_on(process, other)
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            if self._reading:
                self._selector.unregister(descriptor)
            del process.streams[descriptor]
            os.close(descriptor)
            return False
        self._silence.broken()
        self._send({"kind": process.streams[descriptor], "process": process.index}, data)
        return True

    def _drain(self, process: Process) -> None:
        for descriptor in list(process.streams):
            while self._pass_on(process, descriptor):
                pass

    def _send(self, header: dict[str, object], payload: bytes = b"") -> None:
        self._pending += frames.encode(header, payload)
        self._flush()

    def _flush(self) -> None:
        """Send what the client will take; a client that is slow stops the reading, not the supervision."""
        try:
            while self._pending:
                del self._pending[: self._connection.send(memoryview(self._pending)[:_CHUNK_BYTES].tobytes())]
        except BlockingIOError:
            pass
        except OSError:
            self._client_gone = True
            self._pending.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pending else 0)
        self._selector.modify(self._connection, wanted)
        reading = len(self._pending) < _MAX_PENDING_BYTES
        if reading != self._reading:
            self._reading = reading
            for process in self._processes.values():
                for descriptor in process.streams:
                    if reading:
                        self._selector.register(descriptor, selectors.EVENT_READ, process)
                    else:
                        self._selector.unregister(descriptor)

    def _report_stacks(self) -> None:
        """Ask every process that is still running where it is."""
        asked = [p for p in self._processes.values() if p.status is None]
        # one that has not begun yet, or has just ended, has nothing to say
        able = {p.index for p in asked if processes.catches(p.pid, signal.SIGUSR1)}
        for process in asked:
            os.kill(process.pid, signal.SIGUSR1)
        limit = time.monotonic() + 1.0
        for process in asked:
            seen = -1
            while (
                process.index in able
                and time.monotonic() < limit
                and (size := os.fstat(process.stacks).st_size) != seen
                and processes.catches(process.pid, signal.SIGUSR1)
            ):
                seen = size if size > process.told_stacks else -1
                time.sleep(0.02)
            self._send_stacks(process)

    def _send_stacks(self, process: Process) -> None:
        """Where a process is, or was when it crashed: its threads, from what they wrote, and what it has begun."""
        written = os.pread(process.stacks, 1 << 20, process.told_stacks)
        process.told_stacks += len(written)
        dump = written.decode(errors="replace")
        # a fork keeps the identifier of its only thread
        found = sorted(threads(dump, self._asked.job), key=lambda thread: thread.identifier != threading.get_ident())
        if process.status is not None:
            found.sort(key=lambda thread: not thread.current)
        under_way = self._board.under_way(process.index)
        self._send({"kind": "stacks", "process": process.index}, reports.place_of(found, under_way))

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
