"""A sandbox whose clock moves by events: when a process in it says that it hangs, or how long something takes.

A call on ranks is stopped because it hangs, however fast the machine is; one that does not hang has all the time that
it needs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

from autograder.sandbox.runner import Bubblewrap
from labkit.linux import proc

HANG_SECONDS = 0.4
"""What passes when a call hangs: give the judge this as the time-out of a call. The client reads the clock as often."""

SAYS_IT_HANGS = "__import__('ctypes').CDLL(None).prctl(15, b'hangs')"
"""An expression after which a process hangs: it takes this name (PR_SET_NAME)."""


def takes(seconds: float) -> str:
    """Return an expression that takes so many seconds: a process with that name stops until they have passed."""
    named = f"__import__('ctypes').CDLL(None).prctl(15, b'takes {seconds:g}')"
    return f"({named}, __import__('os').kill(__import__('os').getpid(), {int(signal.SIGSTOP)}))"


class EventClock:
    """Seconds that pass while it is read: `HANG_SECONDS` for each call that hangs, and what `takes` says."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._seconds = 0.0
        self._hung = False

    def __call__(self) -> float:
        hung = False
        for pid in self._pids():
            with suppress(OSError):  # it has ended
                for thread in proc.threads(pid):
                    name = proc.read(f"{pid}/task/{thread}/comm").decode(errors="replace").strip()
                    hung |= name == "hangs"
                    if name.startswith("takes ") and proc.stat(pid)[0] == b"T":
                        self._seconds += float(name.removeprefix("takes "))
                        os.kill(pid, signal.SIGCONT)
        if hung and not self._hung:
            self._seconds += HANG_SECONDS
        self._hung = hung
        return self._seconds


class ByEvents(Bubblewrap):
    """Bubblewrap, with that clock: `Sandbox(runner=ByEvents)`, or by its name in a configuration."""

    def clock(self, pids: Callable[[], Iterable[int]]) -> Callable[[], float]:
        return EventClock(pids)
