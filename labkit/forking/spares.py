"""A spare: a process that a forkserver has forked while it was idle, for the next request that has the same `Ahead`.

Much of the time until a forked process does its first work is the kernel's: it copies page tables at a fork, and pages
at their first write. A spare has most of that behind it, and is as fresh as others: nothing has run in it yet.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.forking.request import MAX_DESCRIPTORS
from labkit.transport import datagrams


class Spares:
    """The forkserver's side: at most one spare waits."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """Of the one that waits."""
        self.missing: Mapping[str, Any] | None = None
        """The message of an `Ahead` to fork when there is time."""
        self._waits_for: Mapping[str, Any] | None = None
        self._control: socket.socket | None = None

    def expect(self, ahead: Mapping[str, Any] | None) -> None:
        """Be ready for requests with this `Ahead`, and for no other, from now on; None: for none."""
        if ahead != self._waits_for:
            self.dismiss()
            self.missing = ahead

    def have(self, pid: int, control: socket.socket) -> None:
        """Keep the one that was missing, and has just been forked. control: the peer of `taken`'s."""
        self.pid, self._control = pid, control
        self._waits_for, self.missing = self.missing, None

    def take(self, ahead: Mapping[str, Any], descriptors: Sequence[int]) -> int | None:
        """Make it serve the request with these descriptors. Return its PID, or None if none waits for this `Ahead`."""
        pid = self.pid
        return pid if ahead == self._waits_for and self._tell(descriptors) else None

    def dismiss(self) -> None:
        """Make it end, and another one be forked."""
        self._tell([])

    def leave(self) -> None:
        """In a forked process: have nothing to do with the one that waits."""
        if self._control is not None:
            self._control.close()

    def _tell(self, descriptors: Sequence[int]) -> bool:
        control, self.missing = self._control, self._waits_for or self.missing
        self.pid = self._waits_for = self._control = None
        if control is None:
            return False
        try:
            datagrams.send(control, {}, descriptors)
        except OSError:  # it has been killed
            return False
        finally:
            control.close()
        return True


def taken(control: int) -> list[int]:
    """The spare's side: wait for a request; return its descriptors. Raises `EOFError` if the spare is dismissed."""
    with socket.socket(fileno=control) as connection:
        _, descriptors = datagrams.receive(connection, MAX_DESCRIPTORS)
    if not descriptors:
        raise EOFError
    return descriptors
