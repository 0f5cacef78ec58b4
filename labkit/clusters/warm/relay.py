"""What goes through a supervisor: from the processes of a run to its client, and from the client to them."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from typing import Any

from labkit.clusters.warm import frames
from labkit.clusters.warm.forked import Process

_CHUNK_BYTES = 256 << 10
_MAX_PENDING_BYTES = 8 << 20
_MAX_COMMAND_BYTES = 4 << 30


class Relay:
    """Passes on what processes print and report, and what the client sends to them; waits for none of them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._processes: dict[int, Process] = {}
        """By index."""
        self._selector = selectors.DefaultSelector()
        self._heard = frames.Decoder(_MAX_COMMAND_BYTES)
        self._pending = bytearray()
        self._reading = True
        self._client_gone = False

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Do what the client asks for."""
        raise NotImplementedError

    def _reap(self) -> None:
        """Take in every child that has ended."""
        raise NotImplementedError

    def _moves(self) -> None:
        """A process has said something."""

    def _listen(self) -> int:
        """Have signals wake the loop; returns the descriptor on which they do."""
        wake_up, signalled = os.pipe()
        os.set_blocking(wake_up, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._connection.setblocking(False)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(wake_up, selectors.EVENT_READ)
        return wake_up

    def _watch(self, process: Process) -> None:
        """From now on, pass on what it says."""
        self._processes[process.index] = process
        if self._reading:
            for descriptor in process.streams:
                self._selector.register(descriptor, selectors.EVENT_READ, process)

    def _attend(self, wake_up: int, wait: float | None) -> None:
        """See to whatever is ready, within so many seconds. wake_up: what `_listen` returned."""
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
        self._moves()
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
