"""Notices when the thread that has its rank's turn is stuck where no other thread of the rank sees it.

As in a lock of C++, a pipe, or a loop until another thread sets a variable. One thread of the process looks at those
that have a turn, as long as their ranks have other threads, several times a second. It errs towards patience: while
anything else of the process can run, a wait may be for that, as for the threads of an operator.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable

from labkit.clusters.virtual.endpoints.thread_states import RUNS, ThreadStates, others_can_run
from labkit.clusters.virtual.endpoints.waits import RankThread

IsStuck = Callable[[RankThread, int], str]
"""is_stuck(thread, number of its turn): where the thread that has the turn is stuck; empty if it is not."""
Look = Callable[[IsStuck], None]
"""A look at the thread that has its rank's turn."""

LOOK_SECONDS = 0.02
STUCK_LOOKS = 3
"""Number of looks in a row at which a stuck thread has not run since the previous one."""
LONGEST_TURN_SECONDS = 5.0
"""CPU time after which a thread that computes lets others run beside it: it may wait for them."""


class _Lookout:
    def __init__(self) -> None:
        self.process = os.getpid()
        self._watched: dict[Look, None] = {}
        self._turns: dict[RankThread, _Turn] = {}
        self._states = ThreadStates()
        self._idle = _thread.allocate_lock()
        """Held while there is nothing to look at."""
        self._idle.acquire()
        _thread.start_new_thread(self._run, ())

    def watch(self, look: Look) -> None:
        self._watched[look] = None
        if self._idle.locked():
            self._wake()

    def forget(self, look: Look) -> None:
        self._watched.pop(look, None)

    def _wake(self) -> None:
        try:
            self._idle.release()
        except RuntimeError:  # another thread has done it
            return

    def _run(self) -> None:
        pause = _thread.allocate_lock()
        pause.acquire()
        while True:
            self._idle.acquire()
            while self._watched:
                pause.acquire(True, LOOK_SECONDS)
                for look in list(self._watched):
                    look(self._is_stuck)
            self._turns.clear()
            self._states = ThreadStates()
            if self._watched:  # since the loop has ended
                self._wake()

    def _is_stuck(self, thread: RankThread, turn: int) -> str:
        """See `IsStuck`."""
        number = thread.native_id
        if number is None:
            return ""
        state = self._states.of(number)
        seen = self._turns.get(thread)
        if seen is None or seen.number != turn:
            seen = self._turns[thread] = _Turn(turn, self._states.seconds(number))
        if state == RUNS or others_can_run(number):
            seen.looks = 0
            return "a long computation" if self._states.seconds(number) - seen.began > LONGEST_TURN_SECONDS else ""
        seen.looks += 1
        return "a wait outside of Python's threading" if seen.looks >= STUCK_LOOKS else ""


class _Turn:
    """Observations of a thread's present turn."""

    def __init__(self, number: int, began: float) -> None:
        self.number, self.began = number, began
        """Number of the turn, and the thread's CPU time when it was first looked at."""
        self.looks = 0


_lookout: _Lookout | None = None


def watch(look: Look) -> None:
    """Call `look` several times a second from now on."""
    global _lookout
    if _lookout is None or _lookout.process != os.getpid():
        _lookout = _Lookout()
    _lookout.watch(look)


def forget(look: Look) -> None:
    """Call it no longer: the rank has one thread, sleeps, or has ended."""
    if _lookout is not None:
        _lookout.forget(look)
