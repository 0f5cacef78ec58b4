"""The virtual cluster's scheduler: virtual clocks, who runs next, who waits for what.

All of its rules:

1. Every rank has a clock. It advances when the rank computes, sleeps or waits for something that completes later.
2. There is one agenda of timed entries. The entry with the least time comes next: a rank that runs on, a request
   that reaches the scheduler, a step of a message. A rank may run ahead of others until it waits: its requests in the
   meantime go on the agenda at its clock, so requests are served in the order of virtual time.
3. A send and a receive match when both are posted (messages.py). From then on the message crosses the links between
   them (network.py), which messages share fairly (fair_sharing.py). The send is done when its last byte has left the
   sender's port and network card, the receive when the last byte has arrived.
4. A collective begins when its last member has joined, and takes the time of the NCCL cost model.
5. A rank that waits sleeps until its request is done; its clock is then at least that time.
6. When no rank can run and some rank still waits, it is a deadlock: diagnosis.py describes who waits for whom.
7. A wait with a time limit ends at that moment of the rank's clock, unless what it waits for is known to come.

The engine does not depend on how ranks run: threads.py runs them as threads of this process, remote.py as processes of
their own. Ties are broken by order of arrival, so the same program gives the same trace, bit for bit.

A ring of 256 ranks posts a quarter of a million requests, so the code on a message's way takes as few steps as
possible.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

from labkit.clusters.rank_status import RankStatus
from labkit.clusters.virtual.scheduler import diagnosis
from labkit.clusters.virtual.scheduler.collective_matching import CollectiveMatcher
from labkit.clusters.virtual.scheduler.faults import Fault, Faults
from labkit.clusters.virtual.scheduler.messages import Messages
from labkit.clusters.virtual.scheduler.network import Network
from labkit.clusters.virtual.scheduler.requests import Blocked, Collective, Receive, Request, Send, Timer
from labkit.hardware import Topology
from labkit.trace import Kind, Membership, Trace, events_from

POLL_SECONDS = 1e-6
"""Virtual time of asking a Work whether it is complete; without it a polling loop would never let time pass."""

MOST_POLLS = 200_000
"""Polls in a row after which a polling loop is a deadlock, if nothing else can happen any more."""

_LAST = 1 << 62

Act = Callable[[float, Any], None]


class Engine:
    """Schedules the ranks of one job on a topology."""

    def __init__(self, topology: Topology, faults: Sequence[Fault] = (), recording: bool = True) -> None:
        self.topology = topology
        self.clock = [0.0] * topology.world_size
        self.waiting: dict[int, Request] = {}
        self.several: dict[int, list[Request]] = {}
        """All requests of waiting ranks with several threads; `waiting` holds the first."""
        self.restless: set[int] = set()
        """Ranks of `several` with a thread that waits for something outside the run and may go on by itself."""
        self.called_back: Callable[[bool], int | None] = lambda until_one: None
        """Returns a rank of `several` with a thread that runs again, or None. With True it waits for one."""
        self.failure = ""
        """The scheduler's own first error and its place: from then on every wait fails."""
        self.mismatched: dict[int, diagnosis.MismatchError] = {}
        """Error of each rank's first request that did not match another rank's."""
        self.ended: dict[int, bool] = {}
        """Ranks whose program has ended, and whether it failed."""
        self.apart: set[int] = set()
        """Live ranks that do not run the current cell; they count as ended."""
        self.lost: set[int] = set()
        """Failed ranks, as far as others can know by now."""
        self.closed: dict[str, set[int]] = {}
        """Ranks that have timed out in each group. As with gloo, nobody can reach them there any more."""
        self._limits: dict[int, tuple[Request, float, float]] = {}
        """Latest wait of each rank with a time limit: the request, the limit, and the seconds of the wait."""
        self._limits_due: dict[int, float] = {}
        """Time of the next check of each rank's limit. One entry of the agenda serves all waits of a rank."""
        self._ended_waits: dict[int, RuntimeError] = {}
        """Error that ended each rank's wait for a request that is still under way."""
        self.stuck: list[RankStatus] = []
        """The ranks of the first deadlock, and what each waited for."""
        self.groups: dict[str, tuple[int, ...]] = {}
        self._memberships: dict[tuple[int, str], Membership] = {}
        """Memberships by rank and group, in the order of joining."""
        self.events: list[tuple[Any, ...]] | None = [] if recording else None
        """Rows of plain values, in the order of Event's fields: the garbage collector stops tracking those."""
        self.faults = Faults(faults, topology)
        self.messages = Messages(self)
        messages = self.messages
        self.network = Network(topology, self.at, messages.left, messages.arrived, messages.failed)
        self.matcher = CollectiveMatcher(self)
        self._agenda: list[tuple[float, int, Act | None, Any]] = []
        self._order = 0
        self._polls: dict[int, tuple[int, int]] = {}
        """Number of unsuccessful polls of each rank, and the latest request of any rank when it began to count."""
        self._order_of_requests = 0
        self._computing: list[tuple[float, int] | None] = [None] * topology.world_size
        """Time at which each rank began to compute, and its number of operators since, until its next request."""
        self._accept: dict[type[Request], Act] = {
            Send: self.messages.accept_send,
            Receive: self.messages.accept_receive,
            Collective: self.matcher.accept,
            Timer: lambda time, timer: self.complete(timer, time + timer.seconds),
            Blocked: lambda time, blocked: None,
        }
        self.faults.plan(self)  # first: faults at time 0 take effect before any rank runs
        for rank in range(topology.world_size):
            self.at(0.0, None, rank)

    def register(self, request: type[Request], accept: Act) -> None:
        """Register a service: `accept(time, request)` is called when a request of this type reaches the scheduler."""
        self._accept[request] = accept

    # Scheduling ---------------------------------------------------------------------------------------------------

    def next_rank(self) -> int | None:
        """Advance time until a rank can run, and return it; None if all have ended."""
        agenda = self._agenda
        while True:
            if self.restless and (called := self.called_back(False)) is not None:
                self._stop_waiting(called)
                return called
            while agenda:
                time, _, act, subject = heappop(agenda)
                if act is None:
                    return subject  # type: ignore[no-any-return]  # the entry of a rank, see `at`
                try:
                    act(time, subject)
                except Exception as error:  # no request may leave all ranks without a scheduler
                    self._has_failed(error)
            if not self.waiting:
                return None
            if self.several and (called := self.called_back(bool(self.restless))) is not None:
                self._stop_waiting(called)
                return called
            now = max(self.clock)
            try:
                errors = diagnosis.explain(self)
            except Exception as error:
                self._has_failed(error)
                continue
            for rank, why in errors.items():
                awaited = self.awaited(rank)
                requests = [request for request in awaited if not isinstance(request, Blocked)]
                # threads that are blocked go on when others do
                self.fail_all(requests or awaited[:1], why, now)

    def _has_failed(self, error: Exception) -> None:
        """Fail all present and future waits."""
        if not self.failure:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            self.failure = f"{type(error).__name__} in {Path(frame.f_code.co_filename).name}, line {line}"
        for request in [request for rank in self.waiting for request in self.awaited(rank)]:
            self._give_up(request)

    def _give_up(self, request: Request) -> None:
        self.fail(request, diagnosis.scheduler_failed(self.failure))

    def at(self, time: float, act: Act | None, subject: Any, last: bool = False) -> None:
        """Put `act(time, subject)` on the agenda; without an act, `subject` is the rank that runs on.

        last: after everything else at the same time.
        """
        self._order += 1
        heappush(self._agenda, (time, self._order + (_LAST if last else 0), act, subject))

    def is_ahead(self, rank: int) -> bool:
        """Whether anything is due before this rank's clock, so that it does not see the present state of others yet."""
        return bool(self._agenda) and self._agenda[0][0] < self.clock[rank]

    def is_idle(self, besides: int) -> bool:
        """Whether the agenda has at most `besides` entries."""
        return len(self._agenda) <= besides

    def step_aside(self, rank: int) -> None:
        """Let the rank run on after all others have reached its clock: `next_rank` must be called now."""
        self.at(self.clock[rank], None, rank)

    def end(self, rank: int, failed: bool) -> None:
        """End the rank's program."""
        self._end_computing(rank)
        self.ended[rank] = failed
        if failed:
            self.at(self.clock[rank], self._lose, rank)

    def go_on(self, ranks: Iterable[int]) -> None:
        """Start another program on these ended ranks, all from now on; those that had failed are back."""
        now = max(self.clock)
        self.clock[:] = [now] * len(self.clock)
        self.lost.clear()
        self.closed.clear()
        for rank in ranks:
            del self.ended[rank]
            self.at(now, None, rank)

    def forget(self) -> None:
        """After all ranks have ended: drop unmatched requests and restart the groups' numbering."""
        self.messages.forget()
        self.matcher.forget()

    def _lose(self, time: float, rank: int) -> None:
        """Withdraw a failed rank's pending requests, and fail those of others that it can no longer complete.

        Messages that it has sent arrive. Requests that have not reached the scheduler yet fail when they do.
        """
        self.lost.add(rank)
        unmet = [*self.messages.unmet(), *self.matcher.unmet()]
        for request in unmet:
            if request.rank == rank and not isinstance(request, Send):
                self._withdraw(request)
        for request in unmet:
            error = diagnosis.lost_peer(self, request) if request.error is None and request.rank != rank else None
            if error is not None:
                self._withdraw(request)
                self.fail(request, error, time)

    # What ranks call ----------------------------------------------------------------------------------------------

    def join_group(self, rank: int, name: str, ranks: tuple[int, ...], backend: str) -> None:
        """Record that a rank has created a process group; every member must mean the same group by its name."""
        known = self.groups.setdefault(name, ranks)
        if known != ranks:
            error = diagnosis.MismatchError(
                f"process group number {name} has ranks {list(ranks)} on rank {rank} but {list(known)} on others: "
                "every rank must call new_group for every group, also for those it is not in, in the same order"
            )
            self.mismatched.setdefault(rank, error)
            raise error
        # a second entry would hide the first
        self._memberships.setdefault((rank, name), Membership(rank, name, backend, self.clock[rank], None))

    def leave_group(self, rank: int, name: str) -> None:
        """Record that a rank has destroyed a process group."""
        membership = self._memberships.get((rank, name))
        if membership is not None and membership.left is None:
            self._memberships[rank, name] = membership._replace(left=self.clock[rank])

    def is_in_group(self, rank: int, name: str) -> bool:
        """Whether the rank has joined this group and not left it."""
        membership = self._memberships.get((rank, name))
        return membership is not None and membership.left is None

    def compute(self, rank: int, seconds: float, operations: int = 1) -> None:
        """Let the rank compute for `seconds`, `operations` operators; all up to its next request is one event."""
        computing = self._computing[rank]
        clock = self.clock[rank]
        self._computing[rank] = (clock, operations) if computing is None else (computing[0], computing[1] + operations)
        if self.faults.any:
            seconds = self.faults.stretched(rank, clock, seconds)
        self.clock[rank] = clock + seconds
        if self.faults.any:
            self.faults.strike(rank, self.clock)

    def computed(self, rank: int, until: float, operations: int) -> None:
        """Record that the rank has computed until that time of its clock; without injected faults."""
        computing = self._computing[rank]
        before = (self.clock[rank], 0) if computing is None else computing
        self._computing[rank] = before[0], before[1] + operations
        self.clock[rank] = until

    def work(self, rank: int, name: str, seconds: float) -> None:
        """Let the rank do work of a known cost: an event of that name."""
        self._end_computing(rank)
        self.compute(rank, seconds)
        self._end_computing(rank, name)

    def sleep(self, rank: int, seconds: float) -> None:
        """Let the rank do nothing for `seconds`."""
        self._end_computing(rank)
        self.clock[rank] += seconds
        self.faults.strike(rank, self.clock)

    def post(self, rank: int, request: Request, at: float | None = None) -> Request:
        """Post a request; returns at once. Its errors are raised by `finish`.

        `at`: the time of the stream on which it is posted, if that is not the rank's own (streams.py).
        """
        clock = self.clock[rank] if at is None else at
        if self._computing[rank] is not None:
            self._end_computing(rank)
        request.rank = rank
        request.posted = clock
        agenda = self._agenda
        self._order += 1
        request.order = self._order_of_requests = self._order
        if agenda and agenda[0][0] < clock:
            heappush(agenda, (clock, self._order, self._accept[request.__class__], request))
        else:
            try:
                self._accept[request.__class__](clock, request)
            except Exception as error:
                self._has_failed(error)
        return request

    def is_done(self, rank: int, request: Request) -> bool:
        """Whether the request is complete by now. Asking takes a little time. The rank must not be ahead."""
        self._end_computing(rank)
        self.clock[rank] += POLL_SECONDS
        if request.error is not None or (request.done_at is not None and request.done_at <= self.clock[rank]):
            return True
        if request.done_at is None:
            if self.failure:
                self._give_up(request)
                return True
            self._poll_in_vain(rank, request)
        return False

    def _poll_in_vain(self, rank: int, request: Request) -> None:
        """Raise DeadlockError when all ranks that could run have polled very often and nothing else has happened."""
        last, times = self._polls.get(rank, (-1, 0))
        self._polls[rank] = self._order_of_requests, (times + 1 if last == self._order_of_requests else 1)
        if times < MOST_POLLS or times % MOST_POLLS:
            return
        others = [r for r in range(len(self.clock)) if r not in self.ended and r not in self.waiting]
        polls = [self._polls.get(r, (-1, 0)) for r in others]
        in_vain = all(last == self._order_of_requests and times >= MOST_POLLS for last, times in polls)
        if in_vain and not any(act is not None for _, _, act, _ in self._agenda):
            self.waiting[rank] = request
            report = diagnosis.explain(self)[rank]
            del self.waiting[rank]
            raise report

    def must_sleep(self, rank: int, request: Request, timeout: float = inf) -> bool:
        """Begin to wait: True if the rank has to sleep (`next_rank` returns it once the request is done).

        After `timeout` seconds the request fails.
        """
        if request.done_at is None and request.error is None:
            if self.failure:
                self._give_up(request)
                return False
            self.waiting[rank] = request
            if timeout < inf:
                due = self.clock[rank] + timeout
                self._limits[rank] = request, due, timeout
                self._look_at_limit(due, rank)
            return True
        return False

    def _look_at_limit(self, due: float, rank: int) -> None:
        """Look at the limit of the rank's wait at that time, if not before."""
        if due < self._limits_due.get(rank, inf):
            self._limits_due[rank] = due
            self.at(due, self._limit_is_due, rank)

    def _limit_is_due(self, time: float, rank: int) -> None:
        if self._limits_due.get(rank) == time:
            del self._limits_due[rank]
        request, due, timeout = self._limits[rank]
        if self.waiting.get(rank) is not request:
            return
        if due > time:
            self._look_at_limit(due, rank)
        else:
            self._time_out(time, (request, timeout))

    def must_sleep_for_any(self, rank: int, waits: Sequence[tuple[Request, float]], restless: bool) -> bool:
        """Let several threads of a rank begin to wait, each for a request that fails at a limit on the clock.

        Returns False if one of these is over by the rank's clock. restless: a thread that waits for something else may
        run on by itself (`called_back` reports when). Without requests the rank sleeps until then.
        """
        clock = self.clock[rank]
        requests = [request for request, _ in waits]
        if self.failure:
            for request in requests:
                if request.done_at is None and request.error is None:
                    self._give_up(request)
        if any(self.is_over(rank, request) for request in requests):
            return False
        self.waiting[rank], self.several[rank] = requests[0], requests
        if restless:
            self.restless.add(rank)
        for request, limit in waits:
            if request.done_at is not None:
                self.at(request.done_at, self._wake, request)
            elif limit < inf:
                self.at(max(limit, clock), self._time_out, (request, limit - request.posted))
        return True

    def is_over(self, rank: int, request: Request) -> bool:
        """Whether the request has failed, or is done by the rank's clock."""
        return request.error is not None or (request.done_at is not None and request.done_at <= self.clock[rank])

    def awaited(self, rank: int) -> list[Request]:
        """The requests of a waiting rank: one, or one for each of its threads."""
        return self.several.get(rank) or [self.waiting[rank]]

    def _is_awaited(self, request: Request) -> bool:
        return self.waiting.get(request.rank) is request or request in self.several.get(request.rank, ())

    def _stop_waiting(self, rank: int) -> None:
        del self.waiting[rank]
        self.several.pop(rank, None)
        self.restless.discard(rank)

    def _wake(self, time: float, request: Request) -> None:
        """Wake one of a rank's several threads, whose request is done."""
        rank = request.rank
        if request in self.several.get(rank, ()):
            self._stop_waiting(rank)
            self._end_computing(rank)
            self.clock[rank] = max(time, self.clock[rank])
            self.at(self.clock[rank], None, rank)

    def finish(self, rank: int, request: Request, move_clock: bool = True) -> Any:
        """End the wait: raise the request's error, or advance the rank's clock and return the arrived data."""
        if request.error is not None:
            # one error may end many ranks: each gets its own exception, with its own traceback
            raise type(request.error)(*request.error.args)
        if request.done_at is None:
            raise self._ended_waits.pop(rank)
        if move_clock and request.done_at > self.clock[rank]:
            if self._computing[rank] is not None:
                self._end_computing(rank)
            self.clock[rank] = request.done_at
            if self.faults.any:
                self.faults.strike(rank, self.clock)
        return request.result

    @property
    def trace(self) -> Trace:
        # rows are (rank, kind, operation, start, end, ...); the key that counts first is sorted by last. One key of
        # several fields would make a tuple for each row, which takes twice the time
        rows = self.events or []
        for field in (4, 0, 3):
            rows.sort(key=itemgetter(field))
        events, memberships = events_from(rows), tuple(self._memberships.values())
        size, per_machine = self.topology.world_size, self.topology.nproc_per_node
        return Trace(size, events, "modelled", dict(self.groups), (), memberships, per_machine)

    # Outcomes of requests -----------------------------------------------------------------------------------------

    def complete(self, request: Request, time: float) -> None:
        """Complete the request at `time`, now or later."""
        request.done_at = time
        rank = request.rank
        if rank in self.several:
            if request in self.several[rank]:
                self.at(time, self._wake, request)
        elif self.waiting.get(rank) is request:
            del self.waiting[rank]
            self._order += 1
            clock = self.clock[rank]
            heappush(self._agenda, (time if time > clock else clock, self._order, None, rank))

    def fail(self, request: Request, error: BaseException, time: float = 0.0) -> None:
        """Fail the request; the rank gets the error when it waits, not before `time`."""
        request.error = error
        rank = request.rank
        if isinstance(error, diagnosis.MismatchError):
            self.mismatched.setdefault(rank, error)
        if self._is_awaited(request):
            self._let_run(rank, time)

    def fail_all(self, requests: Iterable[Request], error: BaseException, time: float = 0.0) -> None:
        for request in requests:
            self.fail(request, error, time)

    def _time_out(self, time: float, subject: tuple[Request, float]) -> None:
        request, timeout = subject
        if not self._is_awaited(request) or request.done_at is not None:
            return
        if isinstance(request, Collective) and request.rank not in self.several:
            self._ended_waits[request.rank] = diagnosis.wait_timed_out(self, request, timeout)
            self._let_run(request.rank, time)
        else:
            self.give_up(request, diagnosis.timed_out(self, request, timeout), time)

    def give_up(self, request: Request, error: BaseException, time: float) -> None:
        """Fail a request after a time-out. Its rank leaves the group with it, as with gloo, and others cannot reach it.

        A collective that another rank has joined fails at that rank's own limit, if it has one.
        """
        self._withdraw(request)
        self.fail(request, error, time)
        self.closed.setdefault(request.group, set()).add(request.rank)
        for other in [*self.messages.unmet(), *self.matcher.unmet()]:
            has_limit = isinstance(other, Collective) and other.timeout < inf
            closed = None if has_limit or other.error is not None else diagnosis.closed_group(self, other)
            if closed is not None:
                self._withdraw(other)
                self.fail(other, closed, time)

    def _let_run(self, rank: int, time: float) -> None:
        """End the rank's wait at that time."""
        self._stop_waiting(rank)
        self.clock[rank] = max(time, self.clock[rank])
        self.at(self.clock[rank], None, rank)

    def _withdraw(self, request: Request) -> None:
        """Remove a request that nobody waits for any more: nothing may match it."""
        if isinstance(request, Collective):
            self.matcher.joined(request).pop(request.rank, None)
        else:
            self.messages.withdraw(request)

    def _end_computing(self, rank: int, name: str = "compute") -> None:
        computing = self._computing[rank]
        if computing is not None:
            self._computing[rank] = None
            if self.events is not None:
                start, operations = computing
                row = (rank, Kind.COMPUTE.value, name, start, self.clock[rank], 0, None, "", operations, "")
                self.events.append(row)
