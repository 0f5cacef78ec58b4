"""The grader's side of the sandboxes' forkserver: start it once, request sandboxes, restart it when it has died."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from autograder.sandbox.inside import programs
from autograder.sandbox.inside.order import Order
from autograder.sandbox.sandbox_process import ForkServerGone, OnArrival, SandboxProcess, received, talk
from autograder.sandbox.unavailable import refusal
from autograder.sandbox.view import bubblewrap, python
from labkit.forking.client import NoForkServer
from labkit.forking.held import HeldForkServer
from labkit.forking.request import Request

_END_SECONDS = 0.2
"""Seconds granted to an idle forkserver to notice that it is no longer needed."""


class SandboxForkServer:
    """A process in bubblewrap that has torch imported and forks sandboxes. Thread-safe."""

    def __init__(self, command: Sequence[str]) -> None:
        """command: bubblewrap's; the forkserver's own command is appended."""
        self._command = command
        self.server = HeldForkServer(self._launch, _END_SECONDS)

    def fork(self, order: Order, control: socket.socket, errors: IO[bytes], on_arrival: OnArrival) -> SandboxProcess:
        """Return a new sandbox, which serves `control` and prints into `errors`.

        Raises `SandboxNotMade` when namespaces cannot be nested, `SandboxUnavailable` when the forkserver does not
        start.
        """
        for _ in range(2):
            try:
                with self._ask(order, control, errors) as progress:
                    return received(progress, on_arrival)
            except (NoForkServer, ForkServerGone):
                # it was killed or did not start: try once more, with this process's own
                if self.server.is_shared:
                    self.server.close()
        raise refusal(f"bubblewrap does not work here: {self.server.last_words()}")

    def _ask(self, order: Order, control: socket.socket, errors: IO[bytes]) -> socket.socket:
        """Request a sandbox; return the socket on which it reports progress."""
        ours, theirs = talk()
        prepare = programs.prepare_virtual if order.virtual else None
        request = Request(programs.make, order.fields(), prints=True, prepare=prepare)
        with theirs:
            # the exit status of the process that makes the sandbox does not matter
            self.server.ask(request, [errors.fileno(), control.fileno(), theirs.fileno()]).close()
        return ours

    def _launch(self, control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        # no parent-death signal: to the kernel the parent is the thread that starts it, and other threads use it, too.
        # It ends when this process's end of the socket is closed for any reason
        options = json.dumps({"control": control.fileno()})
        return subprocess.Popen(
            [*self._command, *python("autograder.sandbox.inside.forkserver", options)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=[control.fileno()],
            start_new_session=True,
        )


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
    for forkserver in list(_forkservers.values()):
        forkserver.server.close()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    for forkserver in _forkservers.values():
        if _sharing:
            forkserver.server.share_after_fork()
        else:
            forkserver.server.forget_after_fork()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
