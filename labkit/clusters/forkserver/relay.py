"""Data through a supervisor: from the processes of a run to its client, and back."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from abc import ABC, abstractmethod
from typing import Any

from labkit.clusters.forkserver.child_process import ChildProcess
from labkit.transport import frames

_CHUNK_BYTES = 256 << 10
_MAX_PENDING_BYTES = 8 << 20
_MAX_COMMAND_BYTES = 4 << 30


class Relay(ABC):
    """Passes on output and reports of processes, and the client's data to them, without waiting for any of them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._processes: dict[int, ChildProcess] = {}
        """Processes by index."""
        self._selector = selectors.DefaultSelector()
        self._heard = frames.Decoder(_MAX_COMMAND_BYTES)
        self._pending = bytearray()
        self._reading = True
        self._client_gone = False

    @abstractmethod
    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Carry out a request of the client."""

    @abstractmethod
    def _reap(self) -> None:
        """Reap every child that has ended."""

    @abstractmethod
    def _moves(self) -> None:
        """Called when a process has sent something."""

    def _listen(self) -> int:
        """Make signals wake the loop; returns the descriptor on which they do."""
        wake_up, signalled = os.pipe()
        os.set_blocking(wake_up, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._connection.setblocking(False)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(wake_up, selectors.EVENT_READ)
        return wake_up

    def _watch(self, process: ChildProcess) -> None:
        """Pass on this process's data from now on."""
        self._processes[process.index] = process
        if self._reading:
            for descriptor in process.streams:
                self._selector.register(descriptor, selectors.EVENT_READ, process)

    def _attend(self, wake_up: int, wait: float | None) -> None:
        """Handle ready descriptors, for at most `wait` seconds. wake_up: the return value of `_listen`."""
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

    def _hand_over(self, process: ChildProcess) -> None:
        """Send a process as much as it accepts; the rest once it has read that."""
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

    def _pass_on(self, process: ChildProcess, descriptor: int) -> bool:
        """Send on a process's new data; False if there was none."""
        if descriptor not in process.streams:
            return False
        if process.streams[descriptor] == "report":
            # output printed before a report arrives before it; one read empties a pipe
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

    def _drain(self, process: ChildProcess) -> None:
        for descriptor in list(process.streams):
            while self._pass_on(process, descriptor):
                pass

    def _send(self, header: dict[str, object], payload: bytes = b"") -> None:
        self._pending += frames.encode(header, payload)
        self._flush()

    def _flush(self) -> None:
        """Send as much as the client accepts; a slow client stops the reading, not the supervision."""
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
