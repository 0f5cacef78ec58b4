"""The primitives of `threading` and `queue` on a rank's threads: a wait gives the rank's turn to another thread.

Locks and `queue.SimpleQueue` are replaced; all else in `threading`, `queue` and `concurrent.futures` is built from
them. Only those that a rank's thread creates are different, and of these only a wait is: it reports to the rank's
threads (endpoints/rank_threads.py) who waits and who is woken, and its time limit is on the virtual clock. Whoever has
waited for longest is served next. A thread that belongs to no rank waits as ever.
"""

from __future__ import annotations

import _thread
import functools
import multiprocessing.connection
import multiprocessing.queues
import os
import queue
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import GenericAlias
from typing import Any, Protocol

import torch

from labkit.clusters.virtual.endpoints.rank_threads import RankThreads
from labkit.clusters.virtual.endpoints.waits import RankThread, Wait, running
from labkit.clusters.virtual.isolation.current import here
from labkit.imported_modules import NamesInModules

_CLUSTERS = f"{Path(__file__).parents[2]}/"
_guard: Any = _thread.RLock()
"""Held for a few steps on the list of those that wait. Reentrant: the garbage collector may run a finalizer then."""
_forks = 0
"""Number of forks before this process: threads from before are not here."""


class _Waiter(Protocol):
    def wait(self, timeout: float | None) -> bool:
        """Wait until `wake`, for at most `timeout` seconds; returns whether it was woken."""

    def wake(self) -> None:
        """End the wait."""


class _RankWait:
    """The wait of a rank's thread."""

    def __init__(self, threads: RankThreads, thread: RankThread) -> None:
        self._threads = threads
        self._wait = Wait(thread)

    def wait(self, timeout: float | None) -> bool:
        return self._threads.block(self._wait, timeout)

    def wake(self) -> None:
        self._threads.wake(self._wait)


class _RealWait:
    """The wait of a thread that belongs to no rank."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def wait(self, timeout: float | None) -> bool:
        return self._lock.acquire(True, -1 if timeout is None else timeout)

    def wake(self) -> None:
        self._lock.release()


def _new_wait() -> _Waiter:
    """A wait of this thread."""
    endpoint = here.endpoint
    if endpoint is None or here.clock is None:  # without a clock: the compiler works, which the rank's clock leaves out
        return _RealWait()
    threads = endpoint.share()
    assert running.thread is not None
    return _RankWait(threads, running.thread)


class _Waits:
    """The waits for one thing, in order of arrival."""

    __slots__ = ("_forks", "_waits")

    def __init__(self) -> None:
        self._waits: deque[tuple[_Waiter, list[Any]]] = deque()
        self._forks = _forks

    def __bool__(self) -> bool:
        if self._waits and self._forks != _forks:
            self._waits.clear()
            self._forks = _forks
        return bool(self._waits)

    def add(self, wait: _Waiter) -> list[Any]:
        """Add a wait; returns the list into which `serve` puts its item."""
        self._forks = _forks if not self else self._forks
        received: list[Any] = []
        self._waits.append((wait, received))
        return received

    def withdraw(self, wait: _Waiter) -> None:
        """Remove a wait, if it has not been served."""
        with _guard:
            for entry in self._waits:
                if entry[0] is wait:
                    self._waits.remove(entry)
                    return

    def serve(self, item: Any) -> _Waiter:
        """Give `item` to the first wait and return that wait, for the caller to wake, without `_guard`."""
        wait, received = self._waits.popleft()
        received.append(item)
        return wait


class Lock:
    """`threading.Lock`, which is handed to the thread that has waited for it the longest."""

    __slots__ = ("__weakref__", "_lock", "_waits")

    def __new__(cls) -> Any:
        if cls is Lock and not _is_replaced(sys._getframe(1).f_code.co_filename):
            return _thread.allocate_lock()
        return super().__new__(cls)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._waits = _Waits()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        if not blocking or timeout == 0:
            if not blocking and timeout != -1:
                raise ValueError("can't specify a timeout for a non-blocking call")
            _polled()
            return False
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        wait = _new_wait()
        with _guard:
            received = self._waits.add(wait)
            if self._lock.acquire(False):  # released just now
                self._waits.withdraw(wait)
                return True
        try:
            wait.wait(None if timeout == -1 else timeout)
        except BaseException:
            self._waits.withdraw(wait)
            if received:
                self.release()
            raise
        self._waits.withdraw(wait)
        return bool(received)

    def release(self) -> None:
        self._lock.release()
        if self._waits:
            with _guard:
                if not self._waits or not self._lock.acquire(False):
                    return
                following = self._waits.serve(True)  # it stays locked, for that one
            following.wake()

    def locked(self) -> bool:
        return self._lock.locked()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        # for `threading.Condition`, which would try to acquire it otherwise
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]  # for `threading` only
        self._waits = _Waits()

    def __repr__(self) -> str:
        return f"<{'locked' if self.locked() else 'unlocked'} Lock object at {id(self):#x}>"


class SimpleQueue:
    """`queue.SimpleQueue`, which gives items to threads in the order in which they began to wait."""

    def __new__(cls) -> Any:
        if cls is SimpleQueue and not _is_replaced(sys._getframe(1).f_code.co_filename):
            return _real_simple_queue()
        return super().__new__(cls)

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waits = _Waits()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with _guard:
            if not self._waits:
                self._items.append(item)
                return
            following = self._waits.serve(item)
        following.wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        with _guard:
            if self._items:
                return self._items.popleft()
        if not block or timeout == 0:
            _polled()
            raise queue.Empty
        wait = _new_wait()
        with _guard:
            if self._items:  # put there just now
                return self._items.popleft()
            received = self._waits.add(wait)
        try:
            wait.wait(timeout)
        except BaseException:
            self._waits.withdraw(wait)
            self._items.extendleft(received)
            raise
        self._waits.withdraw(wait)
        if not received:
            raise queue.Empty
        return received[0]

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        if not self._items:
            _polled()
        return not self._items

    def qsize(self) -> int:
        return len(self._items)

    __class_getitem__: Any = classmethod(GenericAlias)


def RLock() -> Any:
    """`threading.RLock`, on a rank's thread the one that is built from `Lock`."""
    if _is_replaced(sys._getframe(1).f_code.co_filename):
        return threading._PyRLock()  # type: ignore[attr-defined]  # of `threading` itself
    return _thread.RLock()


class Started:
    """The event by which a thread says that it has been started: a real one, since it belongs to no rank yet."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        with self._lock:
            return True

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]  # as in `threading`


class Thread:
    """Methods of `threading.Thread`."""

    @staticmethod
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        """See `threading.Thread.join`; a time limit is on the virtual clock."""
        other = vars(self).get("_rank_thread")
        if other is not None and here.endpoint is not None and other is not running.thread:
            here.endpoint.share().join(other, None if timeout is None else max(timeout, 0.0))
            if not other.ended:
                return
        _real_join(self, timeout)

    @staticmethod
    def is_alive(self: threading.Thread) -> bool:
        """See `threading.Thread.is_alive`."""
        other = vars(self).get("_rank_thread")
        if other is None or here.endpoint is None:
            return _real_is_alive(self)
        if not other.ended:
            _polled()
        return not other.ended


class Event:
    """A method of `threading.Event`."""

    @staticmethod
    def is_set(self: threading.Event) -> bool:
        """See `threading.Event.is_set`."""
        is_set = _real_is_set(self)
        if not is_set:
            _polled()
        return is_set


class Queue:
    """Methods of `queue.Queue`."""

    @staticmethod
    def empty(self: queue.Queue[Any]) -> bool:
        """See `queue.Queue.empty`."""
        is_empty = _real_empty(self)
        if is_empty:
            _polled()
        return is_empty

    @staticmethod
    def get(self: queue.Queue[Any], block: bool = True, timeout: float | None = None) -> Any:
        """See `queue.Queue.get`."""
        try:
            return _real_get(self, block, timeout)
        except queue.Empty:
            if not block:
                _polled()
            raise


class Future:
    """A method of `torch.futures.Future`, which waits in C++."""

    @staticmethod
    def wait(self: torch.futures.Future[Any]) -> Any:
        """See `torch.futures.Future.wait`."""
        endpoint: Any = here.endpoint
        if endpoint is not None and endpoint.threads is not None and not self.done():
            wait = _new_wait()
            self.add_done_callback(lambda _: wait.wake())
            wait.wait(None)
        return _real_future_wait(self)


def _select(real: Callable[..., Any]) -> Callable[..., Any]:
    """`select` of a selector, which waits for other processes: other threads of the rank run meanwhile."""

    @functools.wraps(real)
    def select(self: Any, timeout: float | None = None) -> Any:
        endpoint: Any = here.endpoint
        if endpoint is None or endpoint.threads is None or endpoint.threads.is_alone:
            return real(self, timeout)
        ready = real(self, 0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        with endpoint.threads.leaving_turn("a wait for another process"):
            return real(self, timeout)

    return select


def _receive(self: Any, *args: Any) -> Any:
    """`multiprocessing.connection.Connection._recv`, which first waits with a selector."""
    if here.endpoint is not None:
        multiprocessing.connection.wait([self])
    return _real_receive(self, *args)


_real_simple_queue: Any = queue.SimpleQueue
_real_join = threading.Thread.join
_real_is_alive = threading.Thread.is_alive
_real_is_set = threading.Event.is_set
_real_empty, _real_get = queue.Queue.empty, queue.Queue.get
_real_future_wait: Any = torch.futures.Future.wait
_real_receive: Any = multiprocessing.connection.Connection._recv  # type: ignore[attr-defined]  # what blocks in it


_primitives = NamesInModules("Lock", "RLock", "_allocate_lock", "SimpleQueue")


def separate() -> None:
    """Replace the primitives, also where a module has imported them by name. After `clocks.separate`."""
    originals: dict[Any, Callable[..., Any]] = {
        threading.Lock: Lock,
        threading.RLock: RLock,
        _real_simple_queue: SimpleQueue,
    }
    for module, namespace, name in _primitives.find():
        if module in ("_thread", "_queue") or module.startswith(("labkit.clusters.", "importlib")):
            continue
        value = namespace[name]
        if callable(value) and value.__class__.__hash__ is not None and value in originals:
            namespace[name] = originals[value]
    replaced: Any = threading.Thread
    replaced.join, replaced.is_alive = Thread.join, Thread.is_alive
    replaced = threading.Event
    replaced.is_set = Event.is_set
    replaced = queue.Queue
    replaced.empty, replaced.get = Queue.empty, Queue.get
    replaced = torch.futures.Future
    replaced.wait = Future.wait
    replaced = multiprocessing.connection.Connection
    replaced._recv = _receive
    for selector in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
        replaced = selector
        replaced.select = _select(selector.select)
    # both took the clock from `time` when they were imported
    vars(threading)["_time"] = vars(queue)["time"] = time.monotonic
    os.register_at_fork(after_in_child=_after_fork)


def is_of_no_rank(thread: threading.Thread, starter: str) -> bool:
    """Whether a thread that is started by this file serves the standard library or the lab, and not the program.

    These wait for other processes, and call nothing that is the program's.
    """
    target = getattr(thread, "_target", None)
    of_pool = getattr(target, "__name__", "") == "_handle_workers" and target.__module__ == "multiprocessing.pool"
    return of_pool or starter == multiprocessing.queues.__file__ or starter.startswith(_CLUSTERS)


def _is_replaced(creator: str) -> bool:
    """Whether a primitive created in this file is a rank's."""
    return here.clock is not None and creator != multiprocessing.queues.__file__ and not creator.startswith(_CLUSTERS)


def _polled() -> None:
    """Record that this thread has polled in vain for what another one may do."""
    endpoint: Any = here.endpoint
    if endpoint is not None and endpoint.threads is not None:
        endpoint.threads.polled()


def _after_fork() -> None:
    global _guard, _forks
    _guard = _thread.RLock()
    _forks += 1
