"""The grader's side of the sandboxes' forkserver: start it once, request sandboxes, restart it when it has died."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from autograder.sandbox.inside.order import Order
from autograder.sandbox.sandbox_process import ForkServerGone, OnArrival, SandboxProcess, received, talk
from autograder.sandbox.unavailable import refusal
from autograder.sandbox.view import bubblewrap, python
from labkit.linux.processes import descendants
from labkit.transport import datagrams

_END_SECONDS = 0.2
"""Seconds granted to an idle forkserver to notice that it is no longer needed."""


class SandboxForkServer:
    """A process in bubblewrap that has torch imported and forks sandboxes. Thread-safe."""

    def __init__(self, command: Sequence[str]) -> None:
        """command: bubblewrap's; the forkserver's own command is appended."""
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._errors: IO[bytes] | None = None
        self._shared = False
        """Whether it belongs to the process from which this one was forked, by agreement."""

    def start(self) -> None:
        """Start it unless it is running; it imports torch in the background."""
        with self._lock:
            self._start()

    def fork(self, order: Order, control: socket.socket, errors: IO[bytes], on_arrival: OnArrival) -> SandboxProcess:
        """Return a new sandbox, which serves `control` and prints into `errors`.

        Raises `SandboxNotMade` when namespaces cannot be nested, `SandboxUnavailable` when the forkserver does not
        start.
        """
        for _ in range(2):
            try:
                with self._ask(order, control, errors) as told:
                    return received(told, on_arrival)
            except ForkServerGone:
                # it was killed or did not start: try once more, with this process's own
                with self._lock:
                    if self._shared:
                        self._forget()
        raise refusal(f"bubblewrap does not work here: {self._last_words()}")

    def _ask(self, order: Order, control: socket.socket, errors: IO[bytes]) -> socket.socket:
        """Request a sandbox; return the grader's end of the socket pair."""
        ours, theirs = talk()
        with self._lock, theirs:
            self._start()
            assert self._control is not None
            handed = [control.fileno(), errors.fileno(), theirs.fileno()]
            try:
                datagrams.send(self._control, order.fields(), handed)
            except OSError as error:
                ours.close()
                raise ForkServerGone(str(error)) from None
        return ours

    def _start(self) -> None:
        if self._shared or (self._process is not None and self._process.poll() is None):
            return
        self._forget()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._control, theirs = datagrams.pair()
        options = json.dumps({"control": theirs.fileno()})
        with theirs:
            # no parent-death signal: to the kernel the parent is the thread that starts it, and other threads use it,
            # too. It ends when this process's end of the socket is closed for any reason
            self._process = subprocess.Popen(
                [*self._command, *python("autograder.sandbox.inside.forkserver", options)],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End it and every sandbox that was forked from it."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:  # still importing, for example after Ctrl-C: do not wait
                self._kill(self._process)
        if self._errors is not None:
            self._errors.close()
        self._process = self._control = self._errors = None
        self._shared = False

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        for pid in (process.pid, *descendants(process.pid)):  # none of them dies with the first
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def _last_words(self) -> str:
        with self._lock:
            if self._errors is None:
                return "it left no message"
            self._errors.seek(0)
            return self._errors.read().decode(errors="replace")[-2000:].strip() or "it left no message"

    def forget_after_fork(self) -> None:
        """Detach in a forked child: the forkserver belongs to the parent and must notice the parent's end."""
        if self._control is not None:
            self._control.close()
        self.share_after_fork()
        self._control, self._shared = None, False

    def share_after_fork(self) -> None:
        """Use the parent's forkserver in a child that does the parent's work.

        It ends when both have ended.
        """
        self._lock = threading.Lock()
        self._shared = self._control is not None
        self._process = self._errors = None


_forkservers: dict[tuple[str, ...], SandboxForkServer] = {}
_making = threading.Lock()
_sharing = False


def sandbox_forkserver() -> SandboxForkServer:
    """Return this process's forkserver: torch is imported once for all submissions that it grades.

    A different course gets a different one, which hides other folders.
    """
    command = (*bubblewrap(),)
    with _making:
        if command not in _forkservers:
            _forkservers[command] = SandboxForkServer(command)
        return _forkservers[command]


@contextmanager
def shared() -> Iterator[None]:
    """Let processes forked in this context use this process's forkservers."""
    global _sharing
    _sharing = True
    try:
        yield
    finally:
        _sharing = False


def close_all() -> None:
    for one in list(_forkservers.values()):
        one.close()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    for one in _forkservers.values():
        if _sharing:
            one.share_after_fork()
        else:
            one.forget_after_fork()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
