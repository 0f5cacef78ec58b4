"""The endpoint of a rank on fake tensors that runs ahead of the virtual clock.

Fake tensors carry no data, so a rank seldom learns anything from another one: it need not wait for it. Such a rank
records what it does and goes on; the scheduler replays the record later (hosts/replay.py), in the order of virtual
time, as if the rank did it then. The rank waits for an answer only where it depends on others: values that are known in
spite of fake tensors, the store, the clock, and whatever reaches the world outside, which other ranks may see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any, NoReturn

import torch
from torch import Tensor

from labkit.clusters.virtual.endpoints import recording
from labkit.clusters.virtual.endpoints.endpoint import Moment, refuse_after_fork
from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
from labkit.clusters.virtual.scheduler.collectives import FROM_ROOT, TO_ROOT, has_data
from labkit.clusters.virtual.scheduler.requests import Collective, Receive, Request, Send, StoreCall
from labkit.torch_versions.fake_tensors import known_values

_BARRIERS = ("barrier", "monitored_barrier")
"""Collectives without data, after which a program may rely on whatever other ranks have written before."""

_ASK: Any = object()


class RecordingEndpoint:
    """A rank's record. `ask` sends it with a question and returns the answer; `pause` may let other ranks run."""

    threads: None = None
    """No threads of the rank share this endpoint, unlike a `SharedEndpoint`; a future's `wait()` looks here."""

    def __init__(
        self,
        rank: int,
        ask: Callable[[], Any],
        pause: Callable[[], None],
        give_up: Callable[[str], NoReturn],
        leave: Callable[[], NoReturn],
    ) -> None:
        """give_up: end this attempt to run ahead, for a reason. leave: never return."""
        self.rank = rank
        self.race_detector = RaceDetector()
        self.record: list[Any] = []
        # an operator's seconds are recorded by the list itself
        self.compute: Callable[..., None] = self.record.append
        self._ask, self._pause, self._give_up, self._leave = ask, pause, give_up, leave
        self._groups: dict[str, tuple[int, ...]] = {}
        self._posted = 0
        self._moments = 0
        self._results: dict[int, Any] = {}
        """Results of `wait`, by number of the request, unless only the scheduler knows them."""
        self._last_now = 0.0
        self._is_cut_off = False
        self._counting = threading.Lock()
        self._counted = 0
        self._progress = 0.0

    # What a rank does without an answer -----------------------------------------------------------------------------

    def join_group(self, name: str, ranks: tuple[int, ...], backend: str) -> None:
        self._groups[name] = ranks
        self.record.append((recording.JOIN, name, ranks, backend))

    def leave_group(self, name: str) -> None:
        self.record.append((recording.LEAVE, name))

    def work(self, name: str, seconds: float) -> None:
        self.record.append((recording.WORK, name, seconds))

    def tick(self, seconds: float) -> None:
        self.record.append((recording.TICK, float(seconds)))

    def post(self, request: Request, at: Moment | None = None) -> Request:
        self._posted = request.order = self._posted + 1
        common = (at, request.group, request.name, request.line)
        result: Any = _ASK
        if isinstance(request, Collective):
            tensors = tuple([recording.packed(tensor) for tensor in request.tensors])
            sizes = tuple(request.pieces), tuple(request.expected)
            data = tensors, request.op, request.root, *sizes, float(request.timeout)
            self.record.append((recording.COLLECTIVE, *common, *data))
            result = self._known_result(request)
        elif isinstance(request, Send):
            dtype = str(request.dtype).removeprefix("torch.")
            self.record.append(
                (recording.SEND, *common, request.to, request.tag, dtype, request.numel, request.payload)
            )
            result = None, -1
        elif isinstance(request, Receive):
            dtype = str(request.dtype).removeprefix("torch.")
            self.record.append((recording.RECEIVE, *common, request.wanted, request.tag, dtype, request.numel))
            if request.wanted is not None and not _may_be_known(request.dtype, request.numel):
                result = None, request.wanted
        elif isinstance(request, StoreCall):
            keys, values = tuple(request.keys), tuple(request.values)
            call = request.store, keys, values, request.number, request.timeout
            self.record.append((recording.STORE, *common, *call))
        else:
            self._give_up(f"a {type(request).__name__}")
        if result is not _ASK:
            self._results[request.order] = result
        return request

    def wait(self, request: Request, move_clock: bool = True, timeout: float = inf) -> tuple[Any, int]:
        number = request.order
        result = self._results.pop(number, _ASK) if move_clock else self._results.get(number, _ASK)
        if result is _ASK:
            arrived, source = self._answer((recording.ASK_ARRIVED, number, move_clock, float(timeout)))
            if isinstance(request, Collective):
                arrived = [None if data is None else recording.unpacked(data) for data in arrived]
            return arrived, source
        self.record.append((recording.WAIT, number, move_clock, float(timeout)))
        self._pause()  # not before: the replay needs to know what a rank does until it waits
        arrived, source = result
        return arrived, source

    def _known_result(self, request: Collective) -> Any:
        """Result of `wait` for a collective without data; `_ASK` if it is unknown whether others have data."""
        members = self._groups[request.group]
        gives = request.name not in FROM_ROOT or members[request.root] == self.rank
        if request.name in _BARRIERS or (gives and (not request.tensors or has_data(request.tensors[0]))):
            return _ASK
        if request.name == "scatter":
            asks = known_values(request.expected[0])
        else:  # if the value of one tensor is unknown, so are all
            asks = all(_may_be_known(tensor.dtype, tensor.numel()) for tensor in request.tensors)
        if asks and not gives:
            return _ASK
        if request.name in TO_ROOT and members[request.root] != self.rank:
            return [], -1
        return [None] * (1 if request.name == "scatter" else len(request.tensors)), -1

    # Moments: the scheduler works out the time, and the rank knows it by a number -----------------------------------

    def moment(self) -> Moment:
        return self._new_moment(recording.MOMENT)

    def done_at(self, request: Request) -> Moment:
        return self._new_moment(recording.DONE_AT, request.order)

    def later(self, one: Moment, other: Moment) -> Moment:
        if one == other or other == 0.0:
            return one
        return other if one == 0.0 else self._new_moment(recording.LATER, one, other)

    def sleep_until(self, moment: Moment) -> None:
        self.record.append((recording.SLEEP_UNTIL, moment))

    def _new_moment(self, *done: Any) -> int:
        self.record.append(done)
        self._moments += 1
        return self._moments

    # What a rank must know ------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        if not self._is_cut_off:
            self._last_now = float(self._answer((recording.ASK_CLOCK,)))
        return self._last_now

    def seconds(self, moment: Moment) -> float:
        return float(self._answer((recording.ASK_SECONDS, moment)))

    def is_done(self, request: Request) -> bool:
        return bool(self._answer((recording.ASK_DONE, request.order)))

    def sleep(self, seconds: float) -> None:
        self._answer((recording.ASK_SLEPT, float(seconds)))

    def catch_up(self) -> None:
        """Wait until all that this rank has done has happened on the virtual clock, too."""
        self._answer((recording.ASK_TURN,))

    def use_file(self, path: str, writes: bool) -> None:
        """Write or read a file of fake tensors. Gives up if ranks of another process have written it."""
        if self._answer((recording.ASK_FILE, path, writes)):
            self._give_up(f"{path} is used by ranks in several processes")

    def _answer(self, question: tuple[Any, ...]) -> Any:
        self.record.append(question)
        return self._ask()

    # Rare: the ranks run again, not ahead ---------------------------------------------------------------------------

    @property
    def observer(self) -> Callable[[Any, str, Sequence[Tensor]], None] | None:
        """Nobody observes the requests of a rank that runs ahead: their times are not known yet."""
        return None

    @observer.setter
    def observer(self, observer: Callable[[Any, str, Sequence[Tensor]], None] | None) -> None:
        if observer is not None:
            self._give_up("a profile")

    def share(self) -> NoReturn:
        self._give_up("threads of its own, or a lock")

    def forget(self, request: Request) -> None:
        """Nothing to forget: there are no threads that wait for a time or a lock."""

    def period(self, request: Request) -> NoReturn:
        self._give_up("a profile")

    def keeping_turn(self, why: str) -> AbstractContextManager[None]:
        return nullcontext()

    # Its end --------------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        self._is_cut_off = True
        for name in ("post", "wait", "join_group", "leave_group", "_answer"):
            setattr(self, name, refuse_after_fork)

    def close(self, failed: bool) -> None:
        """End the rank's program."""

    def leave(self, failed: bool) -> NoReturn:
        """End this rank at once: none of its code runs on, as after `os._exit`."""
        self.record.append((recording.END, failed))
        self._leave()

    # Its memory account ---------------------------------------------------------------------------------------------

    def progress(self) -> float:
        """A number that the seconds of an operator increase by just as much, and any request by more."""
        with self._counting:
            self._count(self.record[self._counted :])
            return self._progress

    def taken(self) -> list[Any]:
        """The record so far, which begins anew. May be called from another thread, while the rank goes on."""
        with self._counting:
            record = self.record[:]
            self._count(record[self._counted :])
            del self.record[: len(record)]
            self._counted = 0
        return record

    def _count(self, more: list[Any]) -> None:
        for done in more:
            if done.__class__ is float:
                self._progress += done
            elif done.__class__ is tuple:
                self._progress += 1.0
        self._counted += len(more)


def _may_be_known(dtype: torch.dtype, numel: int) -> bool:
    """Whether a fake tensor that arrives may have a known value: a small one, or the bytes of an object."""
    return dtype is torch.uint8 or known_values(numel)
