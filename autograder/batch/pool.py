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
from labkit.forking.client import ForkedProcess, NoForkServer
from labkit.transport import lines

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
    time_problem: str = ""
    """Why it is not the time in the submission's `timestamp.txt`; empty if it is, or if the time was recorded."""
    error: str = ""
    hopeless: bool = False
    """Whether another attempt would end the same way, as with a broken rubric."""
    attempts: int = 1


class PoolFailed(RuntimeError):
    """No workers could be started; the message says why."""


@dataclass
class _Worker:
    process: ForkedProcess
    connection: socket.socket
    since: float
    """Time of its last outcome, or of its first work, by the pool's clock."""
    at_hand: deque[GradingTask] = field(default_factory=deque)
    """Current and next piece of work: the worker need not wait while an outcome is being recorded."""
    received: lines.Decoder = field(default_factory=lines.Decoder)


class Pool:
    """Up to `count` workers for a course. Use it in a `with` statement, which ends all of them on exit.

    options: overrides of nbgrader_config.py, plain data. forkserver: starts the workers; its owner closes it.
    unmeasurable: what this machine cannot measure, if already known. clock: seconds, to which `STUCK` applies.
    """

    def __init__(
        self,
        course: Path,
        options: Mapping[str, Any],
        count: int,
        forkserver: WorkerForkServer,
        unmeasurable: Reasons | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if count < 1:
            raise ValueError(f"there must be at least one worker, not {count}")
        known = None if unmeasurable is None else dict(unmeasurable)
        self._course = {"course": str(course), "options": options, "unmeasurable": known}
        self._count = count
        self._clock = clock
        self._forkserver = forkserver
        self._workers: list[_Worker] = []
        self._waiting: deque[GradingTask] = deque()
        self._again: set[GradingTask] = set()
        """Work that is judged even if it has a verdict."""
        self._failed: dict[GradingTask, int] = {}
        self._fruitless: set[int] = set()
        """Numbers of the starts of the forkserver that ended before any of their workers had an outcome."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(kind is not None)

    def close(self, at_once: bool = False) -> None:
        """End all workers, and forget their work. at_once: kill those, too, that have nothing to do."""
        for worker in self._workers:
            if worker.at_hand or at_once:
                worker.process.kill()
            worker.connection.close()
        self._workers.clear()
        for work in (self._waiting, self._again, self._failed):
            work.clear()

    def run(self, todo: Iterable[GradingTask], again: bool = False) -> Iterator[Outcome]:
        """Yield the outcomes of this work as they arrive. See `add` and `arrived`."""
        self.add(todo, again)
        while self.is_busy:
            yield from self.arrived()

    def add(self, todo: Iterable[GradingTask], again: bool = False) -> None:
        """Add work. again: judge it even if it has a verdict."""
        new = list(todo)
        self._waiting.extend(new)
        if again:
            self._again.update(new)

    @property
    def is_busy(self) -> bool:
        """Whether there is work without an outcome."""
        return bool(self._waiting) or any(worker.at_hand for worker in self._workers)

    def arrived(self, seconds: float = 5.0) -> list[Outcome]:
        """Return outcomes that have arrived; wait for so long at most. It may be none.

        A worker that dies is replaced and its work retried once. Raises `PoolFailed`.
        """
        self._hand_out()
        settled = []
        for outcome in self._listen(seconds):
            work, failures = outcome.work, self._failed.get(outcome.work, 0)
            if outcome.error and failures + 1 < ATTEMPTS and not outcome.hopeless:
                self._failed[work] = failures + 1
                self._waiting.append(work)
                continue
            self._failed.pop(work, None)
            self._again.discard(work)
            settled.append(replace(outcome, attempts=failures + 1))
        return settled

    def dismiss(self) -> None:
        """End the workers that have nothing to do; new ones are started when there is work."""
        for worker in [worker for worker in self._workers if not worker.at_hand]:
            worker.connection.close()
            self._workers.remove(worker)

    def _hand_out(self) -> None:
        waiting = self._waiting
        idle = [worker for worker in self._workers if not worker.at_hand]
        while len(self._workers) < self._count and len(waiting) > len(idle):
            idle.append(self._hire())
        ahead = [worker for worker in self._workers if len(worker.at_hand) == 1]
        for worker in idle:
            if waiting:
                worker.since = self._clock()
                self._give(worker, waiting.popleft())
        for worker in ahead:
            if len(waiting) > self._count:  # towards the end, the first free worker takes the next
                self._give(worker, waiting.popleft())

    def _give(self, worker: _Worker, work: GradingTask) -> None:
        task = {"work": [work.student, work.assignment, work.notebook], "again": work in self._again}
        worker.at_hand.append(work)
        with contextlib.suppress(OSError):  # it has died, as the forkserver will report
            worker.connection.sendall(lines.encode(task).encode())

    def _listen(self, seconds: float) -> list[Outcome]:
        """Wait for an event, for so long at most; return the outcomes."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.connection, selectors.EVENT_READ, worker)
                selector.register(worker.process, selectors.EVENT_READ)
            ready = [key.data for key, _ in selector.select(timeout=seconds) if key.data is not None]
        outcomes = []
        for worker in ready:
            outcomes += self._read(worker)
        for worker in list(self._workers):
            if worker.process.poll() is not None:
                outcomes += self._bury(worker)
            elif worker.at_hand and self._clock() - worker.since > STUCK:
                worker.process.kill()
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
            message = json.loads(line)
            worker.since = self._clock()
            self._fruitless.clear()
            outcomes.append(_outcome(worker.at_hand.popleft(), message))
        return outcomes

    def _bury(self, worker: _Worker) -> list[Outcome]:
        """Handle the end of a worker. Raises `PoolFailed` if two forkservers have ended for nothing."""
        self._workers.remove(worker)
        outcomes = self._read(worker)  # outcomes sent before it ended
        worker.connection.close()
        if worker.at_hand:
            how = "all workers ended at once" if worker.process.lost else _how(worker.process.wait())
            reason = f"The worker that judged it ended: {how}. {self._forkserver.last_words()}".strip()
            outcomes.append(Outcome(worker.at_hand.popleft(), error=reason))
        self._waiting.extendleft(reversed(worker.at_hand))
        if worker.process.lost:
            self._has_failed()
        return outcomes

    def _has_failed(self) -> None:
        """Note that the forkserver has ended."""
        self._fruitless.add(self._forkserver.starts)
        if len(self._fruitless) > 1:
            raise PoolFailed(f"The workers cannot be started:\n{self._forkserver.last_words()}")

    def _hire(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            while True:
                try:
                    process = self._forkserver.hire(self._course, theirs)
                    break
                except NoForkServer:
                    self._has_failed()
        worker = _Worker(process, ours, self._clock())
        self._workers.append(worker)
        return worker


def _outcome(work: GradingTask, message: Mapping[str, Any]) -> Outcome:
    if "error" in message:
        return Outcome(work, error=message["error"], hopeless=message["hopeless"])
    stored = StoredVerdict(message["key"], Verdict.from_json(message["verdict"]), message["seconds"])
    return Outcome(work, stored, message["fresh"], message["handed_in"], message["time_problem"])


def _how(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed, perhaps since the machine had no memory left"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
