"""One sandbox as the grader holds it: its first process, and the talk with it until it stands."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from typing import IO, Any

from autograder.sandbox.inside.order import Order
from autograder.sandbox.unavailable import refusal
from autograder.sandbox.view import bubblewrap, python

START_LIMIT_SECONDS = 120.0
_CREDENTIALS = struct.Struct("3i")


class Room:
    """A sandbox that stands. With the end of its first process all others end: the kernel sees to it."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        """Of the first process, as seen from here. Another may have it once this one has ended."""
        self.around: subprocess.Popen[bytes] | None = None
        """The bubblewrap that is this sandbox's alone."""
        self.no_private_folders = ""
        """Why its ranks have no file systems of their own where they should; else empty."""
        self._pidfd = pidfd

    def __del__(self) -> None:
        os.close(self._pidfd)

    def poll(self) -> int | None:
        """None while it stands."""
        return 0 if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Until all of it has ended. Raises `subprocess.TimeoutExpired`."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("sandbox", timeout or 0.0)
        return 0

    def kill(self) -> None:
        """End all that is in it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _has_ended(self, seconds: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        ended = bool(waiting.poll(None if seconds is None else seconds * 1000))
        if ended and self.around is not None:
            self.around.wait()
        return ended


class NotMade(OSError):
    """The sandbox could not be made; the message says what failed."""


class Gone(OSError):
    """What should make the sandbox is no longer there."""


OnArrival = Callable[[int], None]
"""Called with the first process's number before it may go on."""


def received(told: socket.socket, on_arrival: OnArrival) -> Room:
    """The sandbox whose first process reports on `told`. Raises `NotMade` or `Gone`."""
    arrived, pid = _hear(told)
    if not arrived.get("here"):
        raise NotMade(arrived.get("error", "it said nothing of use"))
    try:
        # it waits for the word to go on, so the number is still its own
        room = Room(pid, os.pidfd_open(pid))
    except OSError as error:
        raise Gone(f"its first process ended: {error}") from None
    try:
        on_arrival(pid)
        told.send(b"+")
        ready, _ = _hear(told)
        if not ready.get("ready"):
            raise NotMade(ready.get("error", "it said nothing of use"))
        room.no_private_folders = ready.get("no_private_folders", "")
    except BaseException:
        room.kill()
        room.wait()
        raise
    return room


def talk() -> tuple[socket.socket, socket.socket]:
    """The grader's end of a talk with a sandbox, and the sandbox's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # the kernel translates the number of a process into the namespace of the one who reads it
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(START_LIMIT_SECONDS)
    return ours, theirs


def _hear(told: socket.socket) -> tuple[dict[str, Any], int]:
    """What is said, and by which process."""
    try:
        message, ancillary, _, _ = told.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
    except TimeoutError:
        raise NotMade(f"it did not stand within {START_LIMIT_SECONDS:g} s") from None
    except OSError as error:
        raise Gone(str(error)) from None
    if not message:
        raise Gone("the process that makes sandboxes ended")
    pids = [_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
    return json.loads(message), pids[0]


def single(order: Order, control: socket.socket, errors: IO[bytes], on_arrival: OnArrival) -> Room:
    """A sandbox with a bubblewrap, a Python and an import of torch of its own. Raises `SandboxUnavailable`."""
    ours, theirs = talk()
    options = {"order": order.dumps(), "control": control.fileno(), "told": theirs.fileno()}
    command = [*bubblewrap(order.scratch_bytes), *python("single", json.dumps(options))]
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
            room = received(ours, on_arrival)
        except (NotMade, Gone) as problem:
            started.wait()
            errors.seek(0)
            raise refusal(f"{problem}; {errors.read().decode(errors='replace').strip()[-2000:]}") from None
    room.around = started
    return room
