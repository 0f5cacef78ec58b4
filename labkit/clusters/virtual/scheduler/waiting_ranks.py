"""The ranks that wait, for what and how long, and the outcomes of requests, which end their waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappush
from math import inf
from typing import Any

from labkit.clusters.virtual.scheduler.agenda import Agenda
from labkit.clusters.virtual.scheduler.computing import Computing
from labkit.clusters.virtual.scheduler.errors import MismatchError
from labkit.clusters.virtual.scheduler.requests import Request


class WaitingRanks:
    """Who waits for what. A rank with several threads may wait for a request of each of them."""

    def __init__(
        self,
        clock: list[float],
        agenda: Agenda,
        computing: Computing,
        timed_out: Callable[[float, Request, float], None],
    ) -> None:
        """timed_out: called as `timed_out(time, request, seconds)` when a wait's limit of `seconds` has passed."""
        self._clock, self._agenda, self._computing, self._timed_out = clock, agenda, computing, timed_out
        self.first: dict[int, Request] = {}
        """The request that each waiting rank waits for, the first one if there are several."""
        self.several: dict[int, list[Request]] = {}
        """All requests of waiting ranks with several threads."""
        self.restless: set[int] = set()
        """Ranks of `several` with a thread that waits for something outside the run and may go on by itself."""
        self.mismatched: dict[int, MismatchError] = {}
        """Error of each rank's first request that did not match another rank's."""
        self._limits: dict[int, tuple[Request, float, float]] = {}
        """Latest wait of each rank with a time limit: the request, the limit, and the seconds of the wait."""
        self._limits_due: dict[int, float] = {}
        """Time of the next check of each rank's limit. One entry of the agenda serves all waits of a rank."""
        self._ended_waits: dict[int, RuntimeError] = {}
        """Error that ended each rank's wait for a request that is still under way."""

    def awaited(self, rank: int) -> list[Request]:
        """The requests of a waiting rank: one, or one for each of its threads."""
        return self.several.get(rank) or [self.first[rank]]

    def all_awaited(self) -> list[Request]:
        """The requests of all waiting ranks, in the order in which they began to wait."""
        return [request for rank in self.first for request in self.awaited(rank)]

    def is_awaited(self, request: Request) -> bool:
        return self.first.get(request.rank) is request or request in self.several.get(request.rank, ())

    def is_over(self, rank: int, request: Request) -> bool:
        """Whether the request has failed, or is done by the rank's clock."""
        return request.error is not None or (request.done_at is not None and request.done_at <= self._clock[rank])

    # Beginning and ending -----------------------------------------------------------------------------------------

    def begin(self, rank: int, request: Request, timeout: float) -> None:
        """Let the rank wait for one request, `timeout` seconds at most."""
        self.first[rank] = request
        if timeout < inf:
            due = self._clock[rank] + timeout
            self._limits[rank] = request, due, timeout
            self._look_at_limit(due, rank)

    def begin_several(self, rank: int, waits: Sequence[tuple[Request, float]], restless: bool) -> None:
        """Let several threads of a rank wait, each for a request, up to a limit on the rank's clock."""
        requests = [request for request, _ in waits]
        self.first[rank], self.several[rank] = requests[0], requests
        if restless:
            self.restless.add(rank)
        for request, limit in waits:
            if request.done_at is not None:
                self._agenda.at(request.done_at, self._wake, request)
            elif limit < inf:
                self._agenda.at(max(limit, self._clock[rank]), self._limit_is_over, (request, limit - request.posted))

    def stop(self, rank: int) -> None:
        """The rank waits no longer."""
        del self.first[rank]
        self.several.pop(rank, None)
        self.restless.discard(rank)

    def finish(self, rank: int, request: Request, move_clock: bool = True) -> Any:
        """End the wait: raise the request's error, or advance the rank's clock and return the arrived data."""
        if request.error is not None:
            # one error may end many ranks: each gets its own exception, with its own traceback
            raise type(request.error)(*request.error.args)
        if request.done_at is None:
            raise self._ended_waits.pop(rank)
        if move_clock and request.done_at > self._clock[rank]:
            self._computing.pass_until(rank, request.done_at)
        return request.result

    # Outcomes of requests -----------------------------------------------------------------------------------------

    def complete(self, request: Request, time: float) -> None:
        """Complete the request at `time`, now or later."""
        request.done_at = time
        rank = request.rank
        if rank in self.several:
            if request in self.several[rank]:
                self._agenda.at(time, self._wake, request)
        elif self.first.get(rank) is request:
            del self.first[rank]
            agenda, clock = self._agenda, self._clock[rank]
            agenda.order += 1
            heappush(agenda.entries, (time if time > clock else clock, agenda.order, None, rank))

    def fail(self, request: Request, error: BaseException, time: float = 0.0) -> None:
        """Fail the request; the rank gets the error when it waits, not before `time`."""
        request.error = error
        rank = request.rank
        if isinstance(error, MismatchError):
            self.mismatched.setdefault(rank, error)
        if self.is_awaited(request):
            self._let_run(rank, time)

    def fail_all(self, requests: Iterable[Request], error: BaseException, time: float = 0.0) -> None:
        for request in requests:
            self.fail(request, error, time)

    def give_up(self, rank: int, error: RuntimeError, time: float) -> None:
        """End the rank's wait with an error; its request remains under way."""
        self._ended_waits[rank] = error
        self._let_run(rank, time)

    def _let_run(self, rank: int, time: float) -> None:
        self.stop(rank)
        self._clock[rank] = max(time, self._clock[rank])
        self._agenda.at(self._clock[rank], None, rank)

    def _wake(self, time: float, request: Request) -> None:
        """Wake one of a rank's several threads, whose request is done."""
        rank = request.rank
        if request in self.several.get(rank, ()):
            self._computing.end(rank)
            self._let_run(rank, time)

    # Limits of waits ----------------------------------------------------------------------------------------------

    def _look_at_limit(self, due: float, rank: int) -> None:
        """Look at the limit of the rank's wait at that time, if not before."""
        if due < self._limits_due.get(rank, inf):
            self._limits_due[rank] = due
            self._agenda.at(due, self._limit_is_due, rank)

    def _limit_is_due(self, time: float, rank: int) -> None:
        if self._limits_due.get(rank) == time:
            del self._limits_due[rank]
        request, due, timeout = self._limits[rank]
        if self.first.get(rank) is not request:
            return
        if due > time:
            self._look_at_limit(due, rank)
        else:
            self._limit_is_over(time, (request, timeout))

    def _limit_is_over(self, time: float, subject: tuple[Request, float]) -> None:
        request, timeout = subject
        if self.is_awaited(request) and request.done_at is None:
            self._timed_out(time, request, timeout)
