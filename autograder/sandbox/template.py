"""The template as the grader holds it: started once, asked for each sandbox, started anew when it has died."""

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
from autograder.sandbox.room import Gone, OnArrival, Room, received, talk
from autograder.sandbox.unavailable import refusal
from autograder.sandbox.view import bubblewrap, python
from labkit.clusters.warm.processes import descendants

_END_SECONDS = 0.2
"""In which it sees that nobody wants it, if it has nothing else to do."""


class Template:
    """A process in bubblewrap that has torch imported and forks sandboxes. May be used from any thread."""

    def __init__(self, command: Sequence[str]) -> None:
        """command: bubblewrap's, to which that of the template itself is added."""
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._errors: IO[bytes] | None = None
        self._shared = False
        """Is it that of the process from which this one was forked, with its consent?"""

    def start(self) -> None:
        """Start it unless it stands: it imports torch while other things happen."""
        with self._lock:
            self._start()

    def fork(self, order: Order, control: socket.socket, errors: IO[bytes], on_arrival: OnArrival) -> Room:
        """A new sandbox, which serves `control` and prints into `errors`.

        Raises `NotMade` when there can be no namespaces in the template's, `SandboxUnavailable` when it does not start.
        """
        for _ in range(2):
            try:
                with self._ask(order, control, errors) as told:
                    return received(told, on_arrival)
            except Gone:
                # it has been killed, or did not start: once more, with one of this process's own
                with self._lock:
                    if self._shared:
                        self._forget()
        raise refusal(f"bubblewrap does not work here: {self._last_words()}")

    def _ask(self, order: Order, control: socket.socket, errors: IO[bytes]) -> socket.socket:
        """Have it begin a sandbox; returns the grader's end of the talk with it."""
        ours, theirs = talk()
        with self._lock, theirs:
            self._start()
            assert self._control is not None
            handed = [control.fileno(), errors.fileno(), theirs.fileno()]
            try:
                socket.send_fds(self._control, [order.dumps().encode()], handed)
            except OSError as error:
                ours.close()
                raise Gone(str(error)) from None
        return ours

    def _start(self) -> None:
        if self._shared or (self._process is not None and self._process.poll() is None):
            return
        self._forget()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        options = json.dumps({"control": theirs.fileno()})
        with theirs:
            # not to die with its parent: for the kernel that is the thread which starts it, and others use it too.
            # It ends when this process's end of the socket is closed, by whatever
            self._process = subprocess.Popen(
                [*self._command, *python("template", options)],
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
            except subprocess.TimeoutExpired:  # it is still importing, after Ctrl-C say: nobody waits for that
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
        """In a forked child: the template is its parent's, and must see its parent's end."""
        if self._control is not None:
            self._control.close()
        self.share_after_fork()
        self._control, self._shared = None, False

    def share_after_fork(self) -> None:
        """In a child that is forked to do its parent's work: ask the parent's template for sandboxes.

        It ends when both have.
        """
        self._lock = threading.Lock()
        self._shared = self._control is not None
        self._process = self._errors = None


_templates: dict[tuple[str, ...], Template] = {}
_making = threading.Lock()
_sharing = False


def template() -> Template:
    """That of this process: torch is imported once for all submissions that it grades.

    Another one where another course is graded, from which other folders are hidden.
    """
    command = (*bubblewrap(),)
    with _making:
        if command not in _templates:
            _templates[command] = Template(command)
        return _templates[command]


@contextmanager
def shared() -> Iterator[None]:
    """Processes that are forked meanwhile use the templates of this one, as they stand."""
    global _sharing
    _sharing = True
    try:
        yield
    finally:
        _sharing = False


def close_all() -> None:
    for one in list(_templates.values()):
        one.close()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    for one in _templates.values():
        if _sharing:
            one.share_after_fork()
        else:
            one.forget_after_fork()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
