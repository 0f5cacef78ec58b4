"""A sandbox whose clock moves by events: when a process in it says that it hangs, or how long something takes.

A call on ranks is stopped because it hangs, however fast the machine is; one that does not hang has all the time that
it needs. A process can also be held until the test lets it go on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from autograder.sandbox.runner import Bubblewrap
from labkit.linux import proc

HANG_SECONDS = 0.4
"""What passes when a call hangs: give the judge this as the time-out of a call. The client reads the clock as often."""

SAYS_IT_HANGS = "__import__('ctypes').CDLL(None).prctl(15, b'hangs')"
"""An expression after which a process hangs: it takes this name (PR_SET_NAME)."""

LETS_GO = "LETS_GO_ON"
"""Environment variable: a file without which processes are held, where they ask for it by `IS_HELD`."""


def _stops(name: str) -> str:
    named = f"__import__('ctypes').CDLL(None).prctl(15, b'{name}')"
    return f"({named}, __import__('os').kill(__import__('os').getpid(), {int(signal.SIGSTOP)}))"


IS_HELD = _stops("held")
"""An expression at which a process stops until the file of `LETS_GO` is there."""


def takes(seconds: float) -> str:
    """Return an expression that takes so many seconds: a process with that name stops until they have passed."""
    return _stops(f"takes {seconds:g}")


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
                state = proc.stat(pid)[0]
                threads = [f"{pid}/task/{thread}" for thread in proc.threads(pid)]
                names = {proc.read(f"{thread}/comm").decode(errors="replace").strip() for thread in threads}
                hung |= "hangs" in names and state not in (b"Z", b"X")
                self._let_go_on(pid, names if state == b"T" else ())
        if hung:
            # slowly on: what an earlier call has left may hang, too, such as forks without end
            self._seconds += HANG_SECONDS / 100 if self._hung else HANG_SECONDS
        self._hung = hung
        return self._seconds

    def _let_go_on(self, pid: int, names: Iterable[str]) -> None:
        for name in names:
            if name.startswith("takes "):
                self._seconds += float(name.removeprefix("takes "))
                os.kill(pid, signal.SIGCONT)
            elif name == "held" and Path(os.environ[LETS_GO]).exists():
                os.kill(pid, signal.SIGCONT)


class ByEvents(Bubblewrap):
    """Bubblewrap, with that clock: `Sandbox(runner=ByEvents)`, or by its name in a configuration."""

    def clock(self, pids: Callable[[], Iterable[int]]) -> Callable[[], float]:
        return EventClock(pids)
