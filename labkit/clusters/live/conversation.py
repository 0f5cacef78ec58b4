"""The client's end of live ranks: one thread alone talks to their supervisor, so that no exchange can be cut short.

A `KeyboardInterrupt` may hit the notebook's thread anywhere, even in the middle of a frame. Here it is a message.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.forkserver.hang_policy import HangPolicy
from labkit.clusters.forkserver.notifier import StateNotifier
from labkit.clusters.job import Job
from labkit.clusters.live.messages import Message, encode
from labkit.clusters.rank_status import RankStatus
from labkit.clusters.run import Run
from labkit.linux.clock import Clock, wait_seconds
from labkit.transport import frames

GRACE_SECONDS = 1.0
"""Time that the other ranks may go on after one has failed: enough to notice it themselves."""
ANSWER_SECONDS = 2.0
"""Time after which a rank that does not answer an interrupt is killed."""
_MAX_BYTES = 4 << 30
_DEATH_SECONDS = 10.0
_WHERE_SECONDS = 1.0


class RanksConnection(Protocol):
    """A connection to processes: `labkit.clusters.forkserver.Session`, or one to several machines."""

    @property
    def connection(self) -> Any:
        """Socket for `select`."""

    def receive(self, seconds: float | None = None) -> bytes | None: ...

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """Result of one question."""

    run: Run
    """The run of all ranks; those that were not asked have no result."""
    interrupted: str = ""
    """Reason for an interrupt: `interrupted` by the learner, `timeout`, `failure` of a rank, `hang: ...`; or empty."""
    statuses: Sequence[RankStatus] = ()
    """Status of all ranks at the interrupt; empty if it was for a failed rank."""
    killed: frozenset[int] = frozenset()
    """Ranks that did not answer the interrupt."""
    died: frozenset[int] = frozenset()
    """Ranks that ended by themselves."""


@dataclass
class _Question:
    messages: Mapping[int, bytes]
    job: Job
    on_output: OnOutput | None
    notifier: StateNotifier
    hang_policy: HangPolicy
    answer: Future[Outcome] = field(default_factory=Future)
    began: float = 0.0
    waiting: set[int] = field(default_factory=set)
    interrupt_at: dict[str, float] = field(default_factory=dict)
    """Time of each pending interrupt on the conversation's clock, by reason."""
    interrupted: str = ""
    """Reason for the interrupt."""
    where_until: float | None = None
    """Time until which all ranks are asked for their place before they are interrupted."""
    statuses: Sequence[RankStatus] = ()
    kill_at: float | None = None
    killed: set[int] = field(default_factory=set)
    error: BaseException | None = None
    """Exception raised by `on_output`."""


class Conversation:
    """Questions to ranks, one after the other."""

    def __init__(
        self, connection: RanksConnection, hosted: Sequence[Sequence[int]], clock: Clock = time.monotonic
    ) -> None:
        """`hosted[i]`: the ranks of process i. All ranks of one process get the same message. clock: of all limits."""
        self._connection = connection
        self._clock = clock
        self._hosted = hosted
        self._process = {rank: process for process, ranks in enumerate(hosted) for rank in ranks}
        self._collector = Collector(hosted, None, self._printed_meanwhile, _MAX_BYTES)
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._wake_up = os.pipe()
        self._question: _Question | None = None
        self._meanwhile: list[tuple[int, str, str]] = []
        self._lock = threading.Lock()
        self._ended = False
        self._closed = False
        self.exits: dict[int, int | None] = {}
        """Dead ranks: exit code, or minus the signal's number."""
        self.losses: dict[int, str] = {}
        """Ranks that were lost without ending by themselves, in words: `ended with node2: ...`."""
        self._thread = threading.Thread(target=self._serve, name="labkit live ranks", daemon=True)
        self._thread.start()

    def ask(
        self,
        messages: Mapping[int, Message],
        job: Job,
        on_output: OnOutput | None = None,
        on_state: OnState | None = None,
    ) -> Outcome:
        """Send each rank its message and return when all have answered or are dead.

        When one fails, the others are interrupted after `GRACE_SECONDS`; all are interrupted after `job.timeout`
        seconds, on a hang if `job` stops on hangs, and on `KeyboardInterrupt` here, which is not raised. `on_output`
        and `on_state` are called in another thread; exceptions of the first are raised here.
        """
        encoded = {key: encode(message) for key, message in {id(m): m for m in messages.values()}.items()}
        message_frames = {rank: encoded[id(message)] for rank, message in messages.items()}
        notifier, hang_policy = StateNotifier([self._collector], on_state), HangPolicy(job, [self._collector], on_state)
        question = _Question(message_frames, job, on_output, notifier, hang_policy)
        interrupted = False
        while True:
            try:
                if not interrupted and not self._order(lambda: self._begin(question)):
                    return Outcome(Run([]))
                while not question.answer.done():
                    with suppress(TimeoutError):
                        return question.answer.result(timeout=60)
                return question.answer.result()
            except KeyboardInterrupt:
                interrupted = True
                self._order(lambda: self._interrupt_or_refuse(question))

    def printed_meanwhile(self) -> list[tuple[int, str, str]]:
        """Output of ranks since the last question: (rank, stream, text). Each piece is returned once."""
        with self._lock:
            taken, self._meanwhile = self._meanwhile, []
        return taken

    def close(self) -> None:
        """End all ranks."""
        self._order(self._end)
        self._thread.join()

    def _order(self, order: Callable[[], None]) -> bool:
        """Call `order` in the thread; False if it has ended."""
        with self._lock:
            if self._closed:
                return False
            self._orders.put(order)
            os.write(self._wake_up, b".")
            return True

    # all methods below run only in this thread

    def _serve(self) -> None:
        try:
            data = self._connection.receive(0)  # the connection may hold data that it has already received
            if data is not None:
                self._hear(data)
            while not self._ended:
                data = self._wait()
                if data is not None:
                    self._hear(data)
                while not self._orders.empty():
                    self._orders.get()()
                self._look()
        finally:
            self._connection.close()
            for rank in self._process:
                self.exits.setdefault(rank, None)
            with self._lock:
                self._closed = True
                os.close(self._wake_up)
                os.close(self._woken)
            while not self._orders.empty():
                self._orders.get()()
                self._look()
            self._look()

    def _wait(self) -> bytes | None:
        question = self._question
        times = [] if question is None else [*question.interrupt_at.values(), question.kill_at, question.where_until]
        seconds = wait_seconds(self._clock, *times)
        ready = select.select([self._connection.connection, self._woken], [], [], seconds)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        return self._connection.receive(0) if self._connection.connection in ready else None

    def _hear(self, data: bytes) -> None:
        try:
            self._collector.feed(data)
        except (frames.FrameError, reports.ReportError):
            data = b""
        self._ended = not data
        question = self._question
        if question is not None and not question.interrupted and (reason := question.hang_policy.look()):
            question.interrupted, question.statuses = reason, self._collector.statuses()
            self._interrupt(question)

    def _begin(self, question: _Question) -> None:
        if question.answer.done():
            return
        assert self._question is None
        self._question = question
        question.began = time.monotonic()
        question.waiting = set(question.messages) - set(self.exits)
        if question.job.timeout is not None:
            question.interrupt_at["timeout"] = self._clock() + question.job.timeout

        def on_output(rank: int, stream: str, text: str) -> None:
            try:
                if question.on_output is not None and question.error is None:
                    question.on_output(rank, stream, text)
            except BaseException as error:
                question.error = error
                question.interrupt_at["error"] = self._clock()

        self._collector.start_over(on_output)
        for process, message in {self._process[rank]: m for rank, m in question.messages.items()}.items():
            header = {"kind": "input", "process": process, "hang_timeout": question.job.hang_timeout}
            self._send(header, message)
        question.notifier.look()

    def _interrupt_or_refuse(self, question: _Question) -> None:
        if question is self._question:
            self._stop(question, "interrupted")
        elif not question.answer.done():  # interrupted before it was asked
            question.answer.set_result(Outcome(Run([]), "interrupted"))

    def _stop(self, question: _Question, reason: str) -> None:
        """Interrupt the ranks that have not answered; before that, ask where they are if that is not known."""
        if question.interrupted:
            return
        question.interrupted = reason
        question.interrupt_at.clear()
        if reason == "failure":
            self._interrupt(question)
        else:
            question.where_until = self._clock() + _WHERE_SECONDS
            self._collector.forget_places()
            self._send({"kind": "stacks"})

    def _interrupt(self, question: _Question) -> None:
        question.interrupt_at.clear()
        question.where_until = None
        question.kill_at = self._clock() + ANSWER_SECONDS
        for process in self._processes(question.waiting):
            self._send({"kind": "interrupt", "process": process})

    def _kill(self) -> None:
        question = self._question
        assert question is not None
        if question.killed:  # killing did not help: the supervisor no longer exists
            self._ended = True
            return
        processes = self._processes(question.waiting)
        question.killed = {rank for process in processes for rank in self._hosted[process]}
        question.kill_at = self._clock() + _DEATH_SECONDS
        self._send({"kind": "stacks"})
        for process in processes:
            self._send({"kind": "kill", "process": process})

    def _processes(self, ranks: Iterable[int]) -> set[int]:
        return {self._process[rank] for rank in ranks}

    def _look(self) -> None:
        """Do what is due now."""
        for process, status in self._collector.exits.items():
            self.exits.update(dict.fromkeys(self._hosted[process], status))
        for process, how in self._collector.losses.items():
            self.losses.update(dict.fromkeys(self._hosted[process], how))
        question = self._question
        if question is None:
            return
        results = self._collector.results
        failed = any(result.error is not None or result.exit != 0 for result in results.values())
        question.waiting -= set(results) | set(self.exits)
        died = set(self.exits) & set(question.messages) - question.killed
        if (failed or died) and not question.interrupted:
            question.interrupt_at.setdefault("failure", self._clock() + GRACE_SECONDS)
        question.notifier.look()
        if not question.waiting:
            self._finish(question, died)
            return
        now = self._clock()
        reason = next((reason for reason, at in question.interrupt_at.items() if at <= now), "")
        if reason:
            self._stop(question, reason)
        elif question.where_until is not None and (self._collector.all_places_known or question.where_until <= now):
            question.statuses = self._collector.statuses()
            self._interrupt(question)
        elif question.kill_at is not None and question.kill_at <= now:
            self._kill()

    def _finish(self, question: _Question, died: set[int]) -> None:
        self._question = None
        run = self._collector.run(time.monotonic() - question.began, " ")
        self._collector.start_over(self._printed_meanwhile)
        if question.error is not None:
            question.answer.set_exception(question.error)
        else:
            killed = frozenset(question.killed)
            question.answer.set_result(Outcome(run, question.interrupted, question.statuses, killed, frozenset(died)))

    def _send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        try:
            self._connection.send(header, payload)
        except OSError:
            self._ended = True

    def _printed_meanwhile(self, rank: int, stream: str, text: str) -> None:
        with self._lock:
            self._meanwhile.append((rank, stream, text))

    def _end(self) -> None:
        self._ended = True
