"""A rank's own threads: they share its clock and its endpoint, and run one at a time, in a deterministic order.

One thread has the rank's turn. It gives the turn up only where it waits: for a request, for the clock, or in a
primitive of `threading` or `queue` (isolation/synchronization.py), which reports here who waits and who is woken.
The next one is the thread that has been ready for longest. When no thread is ready, the rank sleeps until a request of
one of them is over, or a time limit: limits are on the virtual clock. So the same program gives the same trace.

What blocks a thread elsewhere, as a lock of C++ or a pipe does, is not seen that way. `leaving_turn` declares it, and
lookout.py notices it after a moment; other threads of the rank then run meanwhile, and the run has a note that says so.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import thread as pools
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from labkit.clusters.virtual.endpoints import lookout
from labkit.clusters.virtual.endpoints.waits import RankThread, Wait, running
from labkit.clusters.virtual.scheduler.requests import Timer

POLL_SECONDS = 1e-6
MOST_POLLS = 100
"""Unsuccessful polls in a row, as of `Event.is_set`, after which each takes `POLL_SECONDS` or 1% of the time since."""
_tell: Callable[[str], None] | None = None


def tell_with(tell: Callable[[str], None]) -> None:
    """Let `tell` add a line to the notes of the run."""
    global _tell
    _tell = tell


class RankThreads:
    """The threads of one rank, once it has started a second one, or waited in a primitive."""

    def __init__(self, endpoint: Any) -> None:
        self._rank = endpoint.rank
        self._endpoint = endpoint
        # those of the endpoint itself, which do not take the turn
        self._post, self._finish, self._forget = endpoint.post, endpoint.wait, endpoint.forget
        self._sleep_for_any, self._call_back = endpoint.sleep_for_any, endpoint.call_back
        self._mutex = _thread.RLock()
        """Held for a few steps. Reentrant, since the garbage collector may run a finalizer that wakes a thread."""
        self._first = running.thread = RankThread(threading.current_thread())
        # in a forked process threading still has the thread's old number
        self._first.native_id = threading.get_native_id()
        self._threads = {self._first: None}
        self._holder: RankThread | None = self._first
        """The thread that has the turn."""
        self._turns = 0
        self._ready: deque[RankThread] = deque()
        self._waits: dict[Wait, None] = {}
        """Waits of the threads that are not ready, in the order in which the waits began."""
        self._elsewhere: dict[RankThread, str] = {}
        """Threads that run or wait without the turn, and what they do."""
        self._choosing = False
        """Whether a thread looks for the next one, or sleeps for the rank."""
        self._chooser: RankThread | None = None
        """The thread that is to do so next."""
        self._asleep = False
        self._timer: tuple[float, Any] | None = None
        """The time that the present timer ends at, and its handle."""
        self._leaving: RankThread | None = None
        """A thread that has given up its last turn, and ends."""
        self._closing: Wait | None = None
        """The wait of the rank's own thread, at its end, for the others."""
        self._is_ended = False
        self._noted: set[str] = set()

    @property
    def is_alone(self) -> bool:
        """Whether the rank has one thread at present."""
        return len(self._threads) == 1

    # Threads ---------------------------------------------------------------------------------------------------------

    def begin(self, thread: threading.Thread) -> RankThread:
        """Register a thread that the rank is about to start."""
        self.enter()
        with self._mutex:
            new = RankThread(thread)
            self._threads[new] = None
            self._ready.append(new)
        lookout.watch(self.look)
        return new

    def take_first_turn(self, me: RankThread) -> None:
        """In a new thread: wait for its turn."""
        running.thread = me
        me.ident, me.native_id = threading.get_ident(), threading.get_native_id()
        self._await_turn(me, None)

    def end(self, me: RankThread) -> None:
        """Let others run: this thread ends, or has not been started after all."""
        with self._mutex:
            me.ended = True
            self._threads.pop(me, None)
            self._elsewhere.pop(me, None)
            with suppress(ValueError):
                self._ready.remove(me)
            for wait in me.joining:
                self.wake(wait)
            if self._holder is me:
                self._leaving = me
                self._release()
            elif self._asleep:
                self._call_back()
            elif self._holder is None and not self._choosing:
                self._release()

    def join(self, other: RankThread, timeout: float | None) -> None:
        """Wait until `other`, a thread of any rank, has ended."""
        with self._mutex:
            if other.ended:
                return
            wait = Wait(_running_thread())
            other.joining.append(wait)
        try:
            self.block(wait, timeout)
        finally:
            other.joining.remove(wait)

    def close(self, failed: bool) -> None:
        """At the end of the rank's program: wait for its threads as Python does, but not for those that never go on.

        failed: do not wait, so that other ranks learn of the failure.
        """
        self.pause(failed)
        with self._mutex:
            self._is_ended = True
            lookout.forget(self.look)
            for thread in self._threads:
                _notify(thread)

    def pause(self, failed: bool) -> None:
        """At the end of a cell on a live rank: like `close`, but the remaining threads go on in a later one.

        As the rank's own thread has the turn, they wait.
        """
        self.enter()
        if failed:
            return
        wait = self._closing = Wait(self._first)
        try:
            if self._somebody_goes_on():
                self.block(wait, None)
        finally:
            self._closing = None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the rank's own thread, if it waits for another one of its threads."""
        with self._mutex:
            wait = next((wait for wait in self._waits if wait.thread is self._first), None)
            if wait is None or self._asleep or self._choosing or wait is self._closing:
                return
            del self._waits[wait]
            if self._holder is not None:
                self._elsewhere[self._holder] = "an interrupted cell"
            self._interrupted = True
            self._hand_to(self._first)

    # The turn --------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Return once this thread has the turn: at once, unless it has been elsewhere."""
        me = running.thread
        if me is self._holder or me is None:  # None: the rank's program is over, and its groups are being destroyed
            return
        if self._is_ended and me is not self._first:
            raise SystemExit  # the rank's program has ended: its remaining threads end here
        with self._mutex:
            self._elsewhere.pop(me, None)
            if self._holder is None and not self._choosing:
                self._hand_to(me)
            else:
                self._ready.append(me)
                if self._asleep:
                    self._call_back()
        self._await_turn(me, None)

    @contextmanager
    def leaving_turn(self, what: str) -> Iterator[None]:
        """Within the context this thread waits for something that no thread of the rank can see; others may run."""
        self.enter()
        me = _running_thread()
        with self._mutex:
            self._elsewhere[me] = what
            self._release()
        try:
            yield
        finally:
            self.enter()

    def wait(self, handle: Any, limit: float) -> None:
        """Let other threads and other ranks run until the request is over. It fails at `limit` on the clock."""
        wait = Wait(_running_thread())
        wait.handle, wait.limit = handle, limit
        self._suspend(wait)

    def sleep(self, seconds: float) -> None:
        """Let other threads and other ranks run for that time."""
        self.block(Wait(_running_thread()), seconds)

    def polled(self) -> None:
        """Record that this thread has polled in vain for what another may do. After many polls, each takes time."""
        me = _running_thread()
        me.polls += 1
        if me.polls == MOST_POLLS:
            me.polling_since = self._endpoint.now
        if me.polls > MOST_POLLS and not self.is_alone and not self._is_ended:
            polls = me.polls
            self.sleep(max(POLL_SECONDS, (self._endpoint.now - me.polling_since) / MOST_POLLS))
            me.polls = polls

    def block(self, wait: Wait, timeout: float | None) -> bool:
        """Block the running thread until `wake`, or for `timeout` virtual seconds; return whether it was woken.

        Raises DeadlockError in the rank's own thread if nothing can wake it any more.
        """
        if self._is_ended:
            return self._block_alone(wait, timeout)
        self.enter()
        if timeout is not None:
            wait.deadline = self._endpoint.now + timeout
        self._suspend(wait)
        if wait.failed:
            self._finish(wait.blocked)  # raises the scheduler's error
        return wait.woken

    def wake(self, wait: Wait) -> None:
        """End the wait of a thread of this rank. From any thread."""
        with self._mutex:
            if wait.woken:
                return
            wait.woken = True
            if self._is_ended:
                _notify(wait.thread)
            elif wait in self._waits:
                self._make_ready(wait)
                if self._asleep:
                    self._call_back()
                elif self._holder is None and not self._choosing:
                    self._hand_to(self._ready.popleft())

    def look(self, is_stuck: lookout.IsStuck) -> None:
        """Let others run if the thread that has the turn is stuck."""
        if self.is_alone:
            lookout.forget(self.look)
            return
        holder = self._holder
        if holder is None or holder.ident is None:
            return
        if holder.is_in_lab:
            return  # it waits for the scheduler, or for a reader of what it has printed
        stuck = is_stuck(holder, self._turns)
        if stuck:
            with self._mutex:
                if self._holder is holder:
                    self._elsewhere[holder] = f"{stuck}: {holder.description}"
                    self._release()

    def _suspend(self, wait: Wait) -> None:
        """Give up the turn until the wait is over."""
        me = wait.thread
        me.polls = 0
        with self._mutex:
            if wait.woken:
                return
            self._waits[wait] = None
            self._holder, self._choosing = None, True
        try:
            self._choose()
            self._await_turn(me, wait)
        except BaseException:  # as an interrupt
            with self._mutex:
                self._waits.pop(wait, None)
                if me in self._ready:
                    self._ready.remove(me)
                if me is self._chooser:
                    self._chooser, self._choosing = None, False
            self.enter()
            raise
        if wait.blocked is not None and not wait.failed:
            self._forget(wait.blocked)

    def _block_alone(self, wait: Wait, timeout: float | None) -> bool:
        """After the rank's program: wait as Python does, for the functions of `atexit` and workers of pools."""
        me = wait.thread
        if me is not self._first and me.thread not in pools._threads_queues:
            raise SystemExit
        while not wait.woken and me.signal.acquire(True, -1 if timeout is None else timeout):
            pass
        return wait.woken

    def _await_turn(self, me: RankThread, wait: Wait | None) -> None:
        while True:
            me.signal.acquire()
            if self._is_ended and me is not self._first:
                if wait is None or wait.handle is not None or me.thread not in pools._threads_queues:
                    raise SystemExit
                if wait.woken:
                    return
            elif self._holder is me:
                break
            elif self._chooser is me:
                self._choose()
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            _join(leaving.thread)  # what it still does is over soon, and may not depend on chance
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    _interrupted = False

    def _hand_to(self, thread: RankThread) -> None:
        self._holder, self._choosing = thread, False
        self._turns += 1
        _notify(thread)

    def _release(self) -> None:
        """Let another thread have the turn; this one does not wait for it."""
        self._holder = None
        if self._ready:
            self._tell_of_others()
            self._hand_to(self._ready.popleft())
        elif self._waits:
            self._choosing = True
            self._chooser = next(iter(self._waits)).thread
            _notify(self._chooser)

    def _make_ready(self, wait: Wait) -> None:
        del self._waits[wait]
        self._ready.append(wait.thread)

    def _choose(self) -> None:
        """Give the turn to the next thread; sleep until there is one."""
        while True:
            with self._mutex:
                self._chooser, closing = None, self._closing
                if closing is not None and closing in self._waits and not self._somebody_goes_on():
                    self._make_ready(closing)
                if self._ready:
                    self._tell_of_others()
                    self._hand_to(self._ready.popleft())
                    return
                waits = self._awaited()
                if not waits:  # one that is elsewhere takes the turn when it is back
                    self._choosing = False
                    return
                self._tell_of_others()
                self._asleep = True
            lookout.forget(self.look)
            try:
                over = self._sleep_for_any(waits, bool(self._elsewhere))
            except BaseException:
                self._choosing = False
                raise
            finally:
                self._asleep = False
                if not self.is_alone:
                    lookout.watch(self.look)
            with self._mutex:
                self._end_waits(over)

    def _awaited(self) -> list[tuple[Any, float]]:
        """The requests of all threads, and their limits; nothing if only threads that are elsewhere can go on."""
        waits = [(wait.handle, wait.limit) for wait in self._waits if wait.handle is not None]
        deadline = min((wait.deadline for wait in self._waits), default=inf)
        if deadline < inf:
            if self._timer is None or self._timer[0] != deadline:
                self._end_timer()
                self._timer = deadline, self._post(Timer("", "sleep", "", max(deadline - self._endpoint.now, 0.0)))
            waits.append((self._timer[1], inf))
        if not waits and self._elsewhere:
            return []
        blocked = [wait for wait in self._waits if wait.handle is None and wait.deadline == inf]
        # the rank's own thread gets the error of a deadlock if no thread waits for a request
        for wait in sorted(blocked, key=lambda wait: wait.thread is not self._first):
            if wait is not self._closing:
                if wait.blocked is None:
                    wait.blocked = self._post(
                        wait.thread.blocked("" if wait.thread is self._first else wait.thread.thread.name)
                    )
                waits.append((wait.blocked, inf))
        return waits

    def _end_waits(self, over: Collection[Any]) -> None:
        now_due = -inf
        if self._timer is not None and self._timer[1] in over:
            now_due = self._timer[0]
            self._end_timer()
        for wait in list(self._waits):
            if wait.handle is not None:
                is_over = wait.handle in over
            else:
                wait.failed = wait.blocked is not None and wait.blocked in over
                is_over = wait.failed or wait.deadline <= now_due
            if is_over:
                self._make_ready(wait)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._forget(self._timer[1])
            self._timer = None

    def _somebody_goes_on(self) -> bool:
        """Whether a non-daemon thread goes on by itself, or waits for something that another, ready thread may do."""
        others = {thread: None for thread in self._threads if thread is not self._first and not thread.thread.daemon}
        if not others:
            return False
        for_itself = [wait.thread for wait in self._waits if wait.handle is not None or wait.deadline < inf]
        return bool(self._ready) or any(thread in others for thread in (*for_itself, *self._elsewhere))

    def _tell_of_others(self) -> None:
        """Add a note to the run on the threads that are elsewhere while others of the rank go on."""
        for thread, what in self._elsewhere.items():
            if _tell is not None and what not in self._noted:
                self._noted.add(what)
                _tell(
                    f"rank {self._rank}: the lab's scheduler cannot see {what} (thread {thread.thread.name}). Other "
                    "threads of the rank ran meanwhile, so the order in which they run may differ from run to run"
                )


def _running_thread() -> RankThread:
    thread = running.thread
    assert thread is not None
    return thread


def _notify(thread: RankThread) -> None:
    with suppress(RuntimeError):  # it has been notified already
        thread.signal.release()


def _join(thread: threading.Thread) -> None:
    threading.Thread.join(thread)
