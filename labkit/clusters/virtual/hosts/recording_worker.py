"""A process that runs some of the ranks on fake tensors ahead of the virtual clock, and sends their records.

Its ranks are threads, of which one runs at a time: the one that the replay waits for, or else the one that has made the
fewest waits. A rank gives its turn to another one after some waits, or when it waits for an answer.
"""

from __future__ import annotations

import functools
import marshal
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic  # ranks have another one
from types import FrameType
from typing import Any, NoReturn

import torch

from labkit.catalogue import code_folders
from labkit.clusters.forkserver import reports
from labkit.clusters.program import is_learners
from labkit.clusters.rank_result import RankResult
from labkit.clusters.virtual.device.garbage import collector
from labkit.clusters.virtual.endpoints import recording
from labkit.clusters.virtual.endpoints.recording import Channel
from labkit.clusters.virtual.endpoints.recording_endpoint import RecordingEndpoint
from labkit.clusters.virtual.endpoints.thread_states import WAITS, ThreadStates
from labkit.clusters.virtual.endpoints.threads import RANK_STACK_BYTES
from labkit.clusters.virtual.isolation import process_state
from labkit.clusters.virtual.isolation.current import here

WAITS_IN_A_ROW = 32
QUESTIONS = 1000
"""Number of questions between two checks whether the ranks ask too often."""
_STEPS = 40
"""Minimum parts of a record between two questions: with fewer, asking takes longer than several processes save."""
_SOON_SECONDS = 0.05
_LOOK_SECONDS = 0.25
GIVEN_UP, HOSTS = -1, -2
"""Values in place of a rank: the reason follows; a rank and the identifier of its thread follow."""
WANTED, HELD, RELEASED = "wanted", "held", "released"
"""Messages in place of an answer: the replay waits for this rank; still has much of its record; has little of it."""
_OUTSIDE = ("open", "os.", "shutil.", "subprocess.", "socket.", "sqlite3.")
"""Prefixes of audit events that show an effect on the world outside this process, or a look at it."""
_NOT_THE_PROGRAM = (
    "<frozen importlib",
    f"{Path(torch.__file__).parent}/",
    *(f"{folder}/" for folder in code_folders()),
)


class RecordingWorker:
    """Runs `program(endpoint)` on these ranks, one thread each. `program` returns whether the rank failed."""

    def __init__(self, channel: Channel, ranks: Sequence[int], program: Callable[[RecordingEndpoint], bool]) -> None:
        self._channel = channel
        self._program = program
        self._endpoints = {
            rank: RecordingEndpoint(
                rank, partial(self._ask, rank), partial(self._pause, rank), self._give_up, self._never_return
            )
            for rank in ranks
        }
        self._batons = {rank: threading.Lock() for rank in ranks}
        self._back = threading.Lock()
        """Released by the rank that gives its turn back."""
        self._waits = dict.fromkeys(ranks, 0)
        self._sent = dict.fromkeys(ranks, 0.0)
        """Time at which each rank's output was last sent."""
        self._asked_at = dict.fromkeys(ranks, 0)
        self._pause_at = dict.fromkeys(ranks, 1)
        """Number of waits at which each rank next gives its turn to another one."""
        self._ready = set(ranks)
        self._wanted = -1
        """The rank whose record the replay cannot go on without; -1: it can, as far as is known."""
        self._held = set[int]()
        """Ranks that are far enough ahead."""
        self._paused = set[int]()
        """Ranks that wait because they are far enough ahead."""
        self._sending = threading.Lock()
        self._answers: dict[int, Any] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._states = ThreadStates()
        self._left = len(ranks)
        self._questions = self._steps = 0
        """Numbers of questions, and of parts of all records."""

    def run(self) -> None:
        """Return when all of the ranks have ended."""
        collector.watch()
        previous = threading.stack_size(RANK_STACK_BYTES)
        try:
            for lock in (self._back, *self._batons.values()):
                lock.acquire()
            for rank in self._batons:
                thread = threading.Thread(target=self._main, args=(rank,), name=f"rank {rank}", daemon=True)
                self._threads[rank] = thread
                thread.start()
        finally:
            threading.stack_size(previous)
        while self._left:
            while not self._ready or self._channel.has_come_in():
                rank, answer = self._channel.receive()
                if answer == WANTED:
                    self._wanted = rank
                elif answer == HELD:
                    self._held.add(rank)
                elif answer == RELEASED:
                    self._held.discard(rank)
                    if rank in self._paused:
                        self._paused.discard(rank)
                        self._ready.add(rank)
                else:
                    (self._answers[rank],) = answer
                    self._ready.add(rank)
            if self._wanted in self._ready:
                rank = self._wanted
            else:
                rank = min(self._ready, key=lambda rank: (self._waits[rank], rank))
            self._ready.discard(rank)
            self._batons[rank].release()
            while not self._back.acquire(timeout=_LOOK_SECONDS):
                self._send(rank)  # what it has printed may be due
                self._check_locks(rank)

    def _check_locks(self, rank: int) -> None:
        """Give up if the rank waits for a lock: its holder may wait for an answer, for instance to read the clock."""
        number = self._threads[rank].native_id
        waits = number is not None and self._states.of(number) == WAITS
        # asked after the look: a rank that has given its turn back meanwhile waits for the next one, or has ended
        if self._left > 1 and waits and self._back.locked():
            self._give_up("a lock that another rank may hold")

    # What the ranks report: see Reporter -----------------------------------------------------------------------------

    def result(self, result: RankResult) -> None:
        self._record(result.rank, recording.RESULT, reports.result_frame(result), result.exit)

    def note(self, text: str) -> None:
        assert here.rank is not None
        self._record(here.rank.number, recording.NOTE, text)

    def hosts(self, rank: int) -> None:
        """Report at once: where a rank is does not depend on its clock."""
        with self._sending:
            self._channel.send((HOSTS, (rank, threading.get_ident())))

    def output(self, rank: int, stream: str, text: str) -> None:
        """Record what a rank prints, and send it soon: it may be due."""
        self._record(rank, recording.OUTPUT, stream, text)
        now = monotonic()
        if now > self._sent[rank] + _SOON_SECONDS and here.rank is not None and here.rank.number == rank:
            self._sent[rank] = now
            self._send(rank)

    # The turns of ranks ---------------------------------------------------------------------------------------------

    def _record(self, rank: int, *done: Any) -> None:
        self._endpoints[rank].record.append(done)

    def _main(self, rank: int) -> None:
        self._take_turn(rank)
        # as in threads.py: threads that the rank starts are no daemons, and a backward pass stays in this thread
        threading.current_thread()._daemonic = False  # type: ignore[attr-defined]  # the property is fixed by now
        with torch.autograd.set_multithreading_enabled(False):
            failed = self._program(self._endpoints[rank])
        self._record(rank, recording.END, failed)
        self._end(rank)

    def _ask(self, rank: int) -> Any:
        self._send(rank)
        self._questions += 1
        if self._questions % QUESTIONS == 0 and self._steps < _STEPS * self._questions:
            self._give_up("questions all the time")
        self._back.release()
        self._take_turn(rank)
        self._asked_at[rank] = self._waits[rank]
        self._pause_at[rank] = self._waits[rank] + 1
        return self._answers.pop(rank)

    def _pause(self, rank: int) -> None:
        self._waits[rank] = made = self._waits[rank] + 1
        if made >= self._pause_at[rank]:
            self._pause_at[rank] = made + min(made - self._asked_at[rank], WAITS_IN_A_ROW)
            self._send(rank)
            (self._paused if rank in self._held else self._ready).add(rank)
            self._back.release()
            self._take_turn(rank)

    def _send(self, rank: int) -> None:
        if collector.has_freed_memory:
            self._give_up("memory that only the garbage collector frees")
        with self._sending:
            record = self._endpoints[rank].taken()
            self._steps += len(record)
            if record and rank == self._wanted:
                self._wanted = -1
            try:
                if record:
                    self._channel.send((rank, marshal.dumps(record)))
                return
            except ValueError as error:  # something that is no plain data
                why = str(error)
        self._give_up(why)

    def _take_turn(self, rank: int) -> None:
        self._batons[rank].acquire()
        process_state.resume(rank)

    def _end(self, rank: int) -> None:
        self._send(rank)
        self._left -= 1
        self._back.release()

    def _never_return(self) -> NoReturn:
        assert here.rank is not None
        self._end(here.rank.number)
        _wait_forever()

    def _give_up(self, why: str) -> NoReturn:
        with self._sending:
            self._channel.send((GIVEN_UP, why))
        _wait_forever()  # the other end ends this process


def _wait_forever() -> NoReturn:
    never = threading.Lock()
    for _ in range(2):  # the second time nobody releases it
        never.acquire()
    raise AssertionError


def keep_order_outside() -> None:
    """Let a rank whose program touches the world outside wait until all that it has done before has happened.

    Otherwise it might read a file before another rank has written it, though the program makes it wait for that rank.
    Only what the program does itself counts, or a library for it: imports and torch read files too, while they hold
    locks that another rank may want.
    """

    def audit(event: str, _: Any) -> None:
        if event.startswith(_OUTSIDE):
            catch_up(sys._getframe(1))

    def catch_up(frame: FrameType | None) -> None:
        endpoint: Any = here.endpoint
        if endpoint is None or here.is_started:
            return
        while frame is not None and not is_learners(frame.f_code.co_filename):
            if frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
                return
            frame = frame.f_back
        if frame is not None:
            endpoint.catch_up()

    sys.addaudithook(audit)
    for module, name in ((os, "stat"), (os, "lstat"), (os, "access"), (torch, "save"), (torch, "load")):
        _call_first(module, name, lambda: catch_up(sys._getframe(2)))


def _call_first(module: Any, name: str, first: Callable[[], None]) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        first()
        return original(*args, **kwargs)

    for able in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if original in able:
            able.add(function)
    setattr(module, name, function)
