"""A process rank's connection to the scheduler server."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from labkit.clusters.virtual.endpoints.endpoint import KnownTimes, refuse_after_fork
from labkit.clusters.virtual.endpoints.protocol import ENDED, Connection
from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
from labkit.clusters.virtual.endpoints.shared_endpoint import SharedEndpoint
from labkit.clusters.virtual.scheduler import errors
from labkit.clusters.virtual.scheduler.errors import Killed, LinkDown
from labkit.clusters.virtual.scheduler.requests import Blocked, Collective, Receive, Request, Send, StoreCall, Timer

_MOST_UNSAID = 64
_MOST_UNSAID_BYTES = 64 << 10
"""Maximum number of calls without an answer, and bytes of one, that wait for a call that needs an answer."""

_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        errors.DeadlockError,
        errors.PeerFailed,
        errors.MismatchError,
        errors.SchedulerFailed,
        LinkDown,
        dist.DistStoreError,
        dist.QueueEmptyError,
    )
}


class SocketEndpoint(SharedEndpoint, KnownTimes):
    """A process rank's connection to the scheduler.

    Calls without an answer are sent with the next call that needs one: the scheduler would serve no other rank
    meanwhile. faulty: faults are injected, so only the scheduler knows how long computing takes. trusted: the rank
    reports its compute time to the scheduler; otherwise computing takes no time.
    """

    def __init__(self, rank: int, connection: Connection, *, faulty: bool = False, trusted: bool = True) -> None:
        self.rank = rank
        self.now = 0.0
        """This rank's virtual clock, in seconds."""
        self._faulty = faulty
        self._trusted = trusted
        self._computed = 0
        """Number of operators since the last report to the scheduler."""
        self._unsaid: list[tuple[Any, ...]] = []
        self._posted = 0
        self._periods: dict[int, tuple[float, float | None]] = {}
        """Times at which each request that a profile records was posted and done, by handle."""
        self._connection = connection
        self._transmitting = threading.Lock()
        self.race_detector = RaceDetector()

    def join_group(self, name: str, ranks: tuple[int, ...], backend: str) -> None:
        self._ask("join_group", name, ranks, backend)

    def leave_group(self, name: str) -> None:
        self._say("leave_group", name)

    def post(self, request: Request, at: float | None = None) -> int:
        common = (request.group, request.name, request.line)
        match request:
            case Send(to=to, tag=tag, dtype=dtype, numel=numel, payload=data):
                fields: tuple[Any, ...] = ("send", *common, to, tag, _name(dtype), numel, data)
            case Receive(wanted=wanted, tag=tag, dtype=dtype, numel=numel):
                fields = ("receive", *common, wanted, tag, _name(dtype), numel)
            case Collective(tensors=tensors, op=op, root=root):
                with self._unobserved():
                    tensors = [tensor.detach() for tensor in tensors]
                more = (request.pieces, request.expected, float(request.timeout))
                fields = ("collective", *common, tensors, op, root, *more)
            case StoreCall(store=table, keys=keys, values=values, number=number, timeout=timeout):
                fields = ("store", request.name, request.line, table, keys, values, number, float(timeout))
            case Timer(seconds=seconds):
                fields = ("timer", float(seconds))
            case Blocked(name=name, line=line, thread=thread):
                fields = ("blocked", name, line, thread)
            case _:
                raise NotImplementedError(f"{type(request).__name__} on ranks that are processes")
        self._posted += 1
        if self.observer is not None:
            self._periods[self._posted] = self.now if at is None else at, None
        self._say("post", self._posted, fields, at)
        large = isinstance(request, Send) and request.nbytes > _MOST_UNSAID_BYTES
        if large or len(self._unsaid) >= _MOST_UNSAID:
            self._send()
        return self._posted

    def wait(self, handle: int, move_clock: bool = True, timeout: float = math.inf) -> tuple[Any, int]:
        if handle in self._periods:
            self._ask("wait", handle, False, timeout)  # else the scheduler forgets the request, and when it was done
            self._periods[handle] = self._periods[handle][0], self.done_at(handle)
        arrived, source = self._ask("wait", handle, move_clock, timeout)
        return arrived, source

    def sleep_for_any(self, waits: Sequence[tuple[int, float]], restless: bool) -> Collection[int]:
        over: list[int] = self._ask("wait_for_any", [handle for handle, _ in waits], [at for _, at in waits], restless)
        return over

    def forget(self, handle: int) -> None:
        self._periods.pop(handle, None)
        self._say("forget", handle)

    def call_back(self) -> None:
        self._transmit([("call_back",)])

    def done_at(self, handle: int) -> float:
        return float(self._ask("done_at", handle))

    def period(self, handle: int) -> tuple[float, float | None]:
        return self._periods.pop(handle)

    def is_done(self, handle: int) -> bool:
        return bool(self._ask("is_done", handle))

    def compute(self, seconds: float, operations: int = 1) -> None:
        if self._trusted:
            if self.threads is not None:  # the operator accounting looked this method up before there were several
                self.threads.enter()
            self.now += seconds
            self._computed += operations

    def work(self, name: str, seconds: float) -> None:
        self._ask("work", name, seconds)

    def sleep(self, seconds: float) -> None:
        self._ask("sleep", float(seconds))

    def tick(self, seconds: float) -> None:
        self._say("tick", float(seconds))
        self.now += seconds
        if len(self._unsaid) >= _MOST_UNSAID:
            self._send()

    def keeping_turn(self, why: str) -> AbstractContextManager[None]:
        return nullcontext()

    def cut_off(self) -> None:
        self.share_no_longer(refuse_after_fork)
        self._ask = self._say = refuse_after_fork  # type: ignore[method-assign]

    def end(self, failed: bool) -> None:
        self._say("end", failed)
        self._send()

    def settle(self) -> None:
        """Report what the rank has computed since its last request. Raises Killed if a fault has struck it there."""
        if self._computed:
            operations, self._computed = self._computed, 0
            if self._faulty:
                self._ask("compute", self.now, operations)
            else:
                self._unsaid.append(("compute", self.now, operations))

    def _say(self, *call: Any) -> None:
        self.settle()
        self._unsaid.append(call)

    def _send(self) -> None:
        calls, self._unsaid = self._unsaid, []
        with self._unobserved():
            self._transmit(calls)

    def _transmit(self, calls: list[tuple[Any, ...]]) -> None:
        try:
            # a thread may call back while another one, which goes to sleep, still sends
            with self._transmitting:
                self._connection.send(calls)
        except (BrokenPipeError, ConnectionResetError):
            raise errors.PeerFailed(ENDED) from None

    def _answer(self) -> Any:
        with self._unobserved():
            return self._connection.receive()

    def _unobserved(self) -> AbstractContextManager[None]:
        """Operators within the context are the connection's, not the program's: a profile leaves them out."""
        return nullcontext() if self.observer is None else self._without_observer()

    @contextmanager
    def _without_observer(self) -> Iterator[None]:
        observer, self.observer = self.observer, None
        try:
            yield
        finally:
            self.observer = observer

    def _ask(self, *call: Any) -> Any:
        self._say(*call)
        self._send()
        answer = self._answer()
        if answer is None:
            raise errors.PeerFailed(ENDED)
        if answer[0] == "killed":
            raise Killed
        if answer[0] == "error":
            _, name, message, self.now = answer
            raise _ERRORS.get(name, RuntimeError)(message)
        _, value, self.now = answer
        return value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
