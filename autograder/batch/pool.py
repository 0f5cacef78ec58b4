"""A pool of worker processes, any of which may die at any time."""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autograder.batch.launch import WorkerForkServer
from autograder.measurable import Reasons
from autograder.verdict import Verdict
from autograder.verdicts.store import GradingTask, StoredVerdict
from labkit.transport import datagrams, lines

ATTEMPTS = 2
"""Maximum failures of a piece of work for external reasons before it is given up in this run."""

STUCK = 1800.0
"""Seconds without an outcome after which a worker is ended: the judge has its own, much shorter limits."""


@dataclass(frozen=True)
class Outcome:
    """Result of one piece of work: a verdict, or the reason why there is none."""

    work: GradingTask
    stored: StoredVerdict | None = None
    fresh: bool = False
    """Whether it was judged now."""
    handed_in: str = ""
    """Submission time as nbgrader writes times; empty when unknown."""
    error: str = ""
    hopeless: bool = False
    """Whether another attempt would end the same way, as with a broken rubric."""
    attempts: int = 1


class PoolFailed(RuntimeError):
    """No workers could be started; the message says why."""


@dataclass
class _Worker:
    connection: socket.socket
    since: float
    """Time of its last outcome, or of its first work, by the pool's clock."""
    at_hand: deque[GradingTask] = field(default_factory=deque)
    """Current and next piece of work: the worker need not wait while an outcome is being recorded."""
    received: lines.Decoder = field(default_factory=lines.Decoder)


class Pool:
    """Up to `count` workers for a course. Use it in a `with` statement, which ends all of them on exit.

    options: overrides of nbgrader_config.py, plain data. forkserver: a forkserver that has been started already.
    unmeasurable: what this machine cannot measure, if already known. clock: that of `STUCK`, in seconds.
    """

    def __init__(
        self,
        course: Path,
        options: Mapping[str, Any],
        count: int,
        forkserver: WorkerForkServer | None = None,
        unmeasurable: Reasons | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if count < 1:
            raise ValueError(f"there must be at least one worker, not {count}")
        known = None if unmeasurable is None else dict(unmeasurable)
        self._course = {"course": str(course), "options": options, "unmeasurable": known}
        self._count = count
        self._clock = clock
        self._forkserver = forkserver or WorkerForkServer()  # it imports while the caller does
        self._workers: dict[int, _Worker] = {}
        self._hired = 0
        self._fruitless = 0
        """Number of forkservers that ended before any of their workers had an outcome."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, worker in self._workers.items():
            if worker.at_hand or kind is not None:
                self._send({"kill": number})
            worker.connection.close()
        self._workers.clear()
        self._forkserver.end()

    def run(self, todo: Iterable[GradingTask], again: bool = False) -> Iterator[Outcome]:
        """Yield outcomes as they arrive. A worker that dies is replaced and its work retried once.

        again: also judge work that has a verdict. Raises `PoolFailed`.
        """
        waiting = deque(todo)
        failed: dict[GradingTask, int] = {}
        while waiting or any(worker.at_hand for worker in self._workers.values()):
            self._hand_out(waiting, again)
            for outcome in self._listen(waiting):
                if outcome.error:
                    failed[outcome.work] = failed.get(outcome.work, 0) + 1
                    if failed[outcome.work] < ATTEMPTS and not outcome.hopeless:
                        waiting.append(outcome.work)
                        continue
                yield replace(outcome, attempts=failed.get(outcome.work, 0) + (not outcome.error))

    def _hand_out(self, waiting: deque[GradingTask], again: bool) -> None:
        idle = [worker for worker in self._workers.values() if not worker.at_hand]
        while len(self._workers) < self._count and len(waiting) > len(idle):
            idle.append(self._hire())
        ahead = [worker for worker in self._workers.values() if len(worker.at_hand) == 1]
        for worker in idle:
            if waiting:
                worker.since = self._clock()
                self._give(worker, waiting.popleft(), again)
        for worker in ahead:
            if len(waiting) > self._count:  # towards the end, the first free worker takes the next
                self._give(worker, waiting.popleft(), again)

    def _give(self, worker: _Worker, work: GradingTask, again: bool) -> None:
        task = {"work": [work.student, work.assignment, work.notebook], "again": again}
        worker.at_hand.append(work)
        with contextlib.suppress(OSError):  # it has died, as the forkserver will report
            worker.connection.sendall(lines.encode(task).encode())

    def _listen(self, waiting: deque[GradingTask]) -> list[Outcome]:
        """Wait for an event; return the outcomes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._forkserver.control, selectors.EVENT_READ)
            for number, worker in self._workers.items():
                selector.register(worker.connection, selectors.EVENT_READ, number)
            ready = [key.data for key, _ in selector.select(timeout=5.0)]
        outcomes = []
        for number in ready:
            if number is not None:
                outcomes += self._read(self._workers[number])
        if None in ready:
            outcomes += self._read_forkserver(waiting)
        for number, worker in self._workers.items():
            if worker.at_hand and self._clock() - worker.since > STUCK:
                self._send({"kill": number})
        return outcomes

    def _read(self, worker: _Worker) -> list[Outcome]:
        """Return the outcomes that have arrived from a worker."""
        arrived: list[bytes] = []
        try:
            while part := worker.connection.recv(1 << 20, socket.MSG_DONTWAIT):
                arrived += worker.received.feed(part)
        except (BlockingIOError, ConnectionResetError):
            pass
        outcomes = []
        for line in arrived:
            told = json.loads(line)
            self._fruitless, worker.since = 0, self._clock()
            outcomes.append(_outcome(worker.at_hand.popleft(), told))
        return outcomes

    def _read_forkserver(self, waiting: deque[GradingTask]) -> list[Outcome]:
        """Handle the end of a worker, or of the forkserver itself and thus of all workers."""
        try:
            told, _ = datagrams.receive(self._forkserver.control)
        except ConnectionResetError:
            told = None
        if told is not None:
            return self._bury(told["worker"], _how(told["exit"]), waiting)
        self._forkserver.end()
        self._fruitless += 1
        if self._fruitless > 1:
            raise PoolFailed(f"The workers cannot be started:\n{self._forkserver.last_words()}")
        outcomes = []
        for number in list(self._workers):
            outcomes += self._bury(number, "all workers ended at once", waiting)
        self._forkserver = WorkerForkServer()
        return outcomes

    def _bury(self, number: int, how: str, waiting: deque[GradingTask]) -> list[Outcome]:
        worker = self._workers.pop(number)
        outcomes = self._read(worker)  # outcomes sent before it ended
        worker.connection.close()
        if worker.at_hand:
            reason = f"The worker that judged it ended: {how}. {self._forkserver.last_words()}".strip()
            outcomes.append(Outcome(worker.at_hand.popleft(), error=reason))
        waiting.extendleft(reversed(worker.at_hand))
        return outcomes

    def _hire(self) -> _Worker:
        ours, theirs = socket.socketpair()
        self._hired += 1
        self._send({"worker": self._hired, **self._course}, theirs)
        theirs.close()
        worker = self._workers[self._hired] = _Worker(ours, self._clock())
        return worker

    def _send(self, message: dict[str, Any], connection: socket.socket | None = None) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # noticed at the next read
            descriptors = [] if connection is None else [connection.fileno()]
            datagrams.send(self._forkserver.control, message, descriptors)


def _outcome(work: GradingTask, told: Mapping[str, Any]) -> Outcome:
    if "error" in told:
        return Outcome(work, error=told["error"], hopeless=told["hopeless"])
    stored = StoredVerdict(told["key"], Verdict.from_json(told["verdict"]), told["seconds"])
    return Outcome(work, stored, told["fresh"], told["handed_in"])


def _how(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed, perhaps since the machine had no memory left"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
