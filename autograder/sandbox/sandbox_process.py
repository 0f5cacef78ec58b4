"""The grader's side of one sandbox process, and the connection with it until it is running."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from typing import IO, Any

from autograder.sandbox.inside.order import Order
from autograder.sandbox.unavailable import refusal
from autograder.sandbox.view import bubblewrap, python
from labkit.linux.pidfd import ProcessHandle
from labkit.transport import datagrams

START_LIMIT_SECONDS = 120.0


class SandboxProcess(ProcessHandle):
    """A running sandbox, by its first process. When that ends, the kernel ends all others."""

    def __init__(self, pid: int) -> None:
        """pid: that of the first process, as seen from here. Raises `OSError` if it has ended."""
        super().__init__(pid)
        self.around: subprocess.Popen[bytes] | None = None
        """The bubblewrap process of this sandbox alone."""
        self.no_private_folders = ""
        """Why its ranks lack their own file systems where they should have them; otherwise empty."""
        self.files_not_limited = ""
        """Why the number of files in memory has no limit of its own; otherwise empty."""

    def poll(self) -> int | None:
        """Return the exit status; None while it is running."""
        status = super().poll()
        if status is not None and self.around is not None:
            self.around.wait()
        return status


class SandboxNotMade(OSError):
    """The sandbox could not be made; the message says what failed."""


class ForkServerGone(OSError):
    """The process that should make the sandbox is gone."""


OnArrival = Callable[[int], None]
"""Called with the first process's PID before it may go on."""


def received(told: socket.socket, on_arrival: OnArrival) -> SandboxProcess:
    """Receive the sandbox whose first process reports on `told`. Raises `SandboxNotMade` or `ForkServerGone`."""
    arrived, pid = _hear(told)
    if not arrived.get("here"):
        raise SandboxNotMade(arrived.get("error", "its first process sent no report"))
    try:
        # it waits for permission to go on, so its pid cannot have been reused
        sandbox = SandboxProcess(pid)
    except OSError as error:
        raise ForkServerGone(f"its first process ended: {error}") from None
    try:
        on_arrival(pid)
        told.send(b"+")
        ready, _ = _hear(told)
        if not ready.get("ready"):
            raise SandboxNotMade(ready.get("error", "its first process sent no report"))
        sandbox.no_private_folders = ready.get("no_private_folders", "")
        sandbox.files_not_limited = ready.get("files_not_limited", "")
    except BaseException:
        sandbox.kill()
        sandbox.wait()
        raise
    return sandbox


def talk() -> tuple[socket.socket, socket.socket]:
    """Return the grader's and the sandbox's ends of their connection."""
    ours, theirs = datagrams.pair()
    datagrams.ask_for_senders(ours)
    ours.settimeout(START_LIMIT_SECONDS)
    return ours, theirs


def _hear(connection: socket.socket) -> tuple[dict[str, Any], int]:
    """Return a message and the PID of its sender."""
    try:
        message, pid = datagrams.receive_with_sender(connection)
    except TimeoutError:
        raise SandboxNotMade(f"it was not ready within {START_LIMIT_SECONDS:g} s") from None
    except OSError as error:
        raise ForkServerGone(str(error)) from None
    if message is None:
        raise ForkServerGone("the process that makes sandboxes ended")
    return message, pid


def single(order: Order, control: socket.socket, errors: IO[bytes], on_arrival: OnArrival) -> SandboxProcess:
    """Start a sandbox with its own bubblewrap, Python and import of torch. Raises `SandboxUnavailable`."""
    ours, theirs = talk()
    options = {"order": order.fields(), "control": control.fileno(), "told": theirs.fileno()}
    command = [*bubblewrap(order.scratch_bytes), *python("autograder.sandbox.inside.single", json.dumps(options))]
    with ours:
        with theirs:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[control.fileno(), theirs.fileno()],
                start_new_session=True,
            )
        try:
            sandbox = received(ours, on_arrival)
        except (SandboxNotMade, ForkServerGone) as problem:
            started.wait()
            errors.seek(0)
            raise refusal(f"{problem}; {errors.read().decode(errors='replace').strip()[-2000:]}") from None
    sandbox.around = started
    return sandbox
