"""The virtual cluster's scheduler: virtual clocks, who runs next, who waits for what.

All of its rules:

1. Every rank has a clock. It advances when the rank computes or sleeps (computing.py) or waits for something that
   completes later.
2. There is one agenda of timed entries (agenda.py). The entry with the least time comes next: a rank that runs on, a
   request that reaches the scheduler, a step of a message. A rank may run ahead of others until it waits: its requests
   in the meantime go on the agenda at its clock, so requests are served in the order of virtual time.
3. A send and a receive match when both are posted (messages.py). From then on the message crosses the links between
   them (network.py), which messages share fairly (fair_sharing.py). The send is done when its last byte has left the
   sender's port and network card, the receive when the last byte has arrived.
4. A collective begins when its last member has joined (collective_matching.py), and takes the time of the NCCL cost
   model.
5. A rank that waits sleeps until its request is done (waiting_ranks.py); its clock is then at least that time.
6. When no rank can run and some rank still waits, it is a deadlock: diagnosis.py describes who waits for whom.
7. A wait with a time limit ends at that moment of the rank's clock, unless what it waits for is known to come.
8. Nothing reaches a rank that has failed, nor in a group one that has timed out in it (reach.py).

Each part has its own state, and is given the parts below it that it needs; the engine alone knows all of them. It does
not depend on how ranks run: threads.py runs them as threads of this process, remote.py as processes of their own. Ties
are broken by order of arrival, so the same program gives the same trace, bit for bit.

A ring of 256 ranks posts a quarter of a million requests, so the code on a message's way takes as few steps as
possible.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path

from labkit.clusters.rank_status import RankStatus
from labkit.clusters.virtual.scheduler.agenda import Act, Agenda
from labkit.clusters.virtual.scheduler.collective_matching import CollectiveMatcher
from labkit.clusters.virtual.scheduler.computing import Computing
from labkit.clusters.virtual.scheduler.diagnosis import Diagnosis
from labkit.clusters.virtual.scheduler.errors import Killed, MismatchError, scheduler_failed
from labkit.clusters.virtual.scheduler.event_log import EventLog
from labkit.clusters.virtual.scheduler.faults import Fault
from labkit.clusters.virtual.scheduler.groups import Groups
from labkit.clusters.virtual.scheduler.injected_faults import InjectedFaults
from labkit.clusters.virtual.scheduler.key_values import KeyValues
from labkit.clusters.virtual.scheduler.messages import Messages
from labkit.clusters.virtual.scheduler.reach import Reach
from labkit.clusters.virtual.scheduler.requests import (
    Blocked,
    Collective,
    Receive,
    Request,
    Send,
    StoreCall,
    Timer,
)
from labkit.clusters.virtual.scheduler.waiting_ranks import WaitingRanks
from labkit.hardware import Topology
from labkit.trace import Trace

POLL_SECONDS = 1e-6
"""Virtual time of asking a Work whether it is complete; without it a polling loop would never let time pass."""

MOST_POLLS = 200_000
"""Polls in a row after which a polling loop is a deadlock, if nothing else can happen any more."""


class Engine:
    """Schedules the ranks of one job on a topology."""

    def __init__(self, topology: Topology, faults: Sequence[Fault] = (), recording: bool = True) -> None:
        self.topology = topology
        self.clock = [0.0] * topology.world_size
        """Time of each rank's clock, in virtual seconds."""
        self.called_back: Callable[[bool], int | None] = lambda until_one: None
        """Returns a rank with several waiting threads of which one runs again, or None. With True it waits for one."""
        self.failure = ""
        """The scheduler's own first error and its place: from then on every wait fails."""
        self.stuck: list[RankStatus] = []
        """The ranks of the first deadlock, and what each waited for."""
        self._agenda = Agenda()
        self.log = EventLog(recording)
        self.faults = InjectedFaults(faults, topology)
        self.groups = Groups()
        self.reach = Reach(topology.world_size)
        self.computing = Computing(self.clock, self.faults, self.log)
        self.waiting = WaitingRanks(self.clock, self._agenda, self.computing, self._wait_timed_out)
        self._messages = Messages(topology, self._agenda, self.waiting, self.groups, self.reach, self.faults, self.log)
        self._matcher = CollectiveMatcher(
            self._agenda, self.waiting, self.groups, self.reach, self._messages.network, self.log, self._not_joined
        )
        self._stores = KeyValues(topology, self._agenda, self.waiting, self.reach)
        self._diagnosis = Diagnosis(self.waiting, self.groups, self.reach, self._messages, self._matcher)
        self._polls: dict[int, tuple[int, int]] = {}
        """Number of unsuccessful polls of each rank, and the latest request of any rank when it began to count."""
        self._order_of_requests = 0
        self._accept: dict[type[Request], Act] = {
            Send: self._messages.accept_send,
            Receive: self._messages.accept_receive,
            Collective: self._matcher.accept,
            StoreCall: self._stores.accept,
            Timer: lambda time, timer: self.waiting.complete(timer, time + timer.seconds),
            Blocked: lambda time, blocked: None,
        }
        # first: faults at time 0 take effect before any rank runs
        self.faults.plan(self._agenda, self._messages.network, self._kill_waiting)
        for rank in range(topology.world_size):
            self._agenda.at(0.0, None, rank)

    # Scheduling ---------------------------------------------------------------------------------------------------

    def next_rank(self) -> int | None:
        """Advance time until a rank can run, and return it; None if all have ended."""
        agenda, waiting = self._agenda.entries, self.waiting
        while True:
            if waiting.restless and (called := self.called_back(False)) is not None:
                waiting.stop(called)
                return called
            while agenda:
                time, _, act, subject = heappop(agenda)
                if act is None:
                    return subject  # type: ignore[no-any-return]  # the entry of a rank, see `Agenda`
                try:
                    act(time, subject)
                except Exception as error:  # no request may leave all ranks without a scheduler
                    self._has_failed(error)
            if not waiting.first:
                return None
            if waiting.several and (called := self.called_back(bool(waiting.restless))) is not None:
                waiting.stop(called)
                return called
            try:
                self._end_deadlock()
            except Exception as error:
                self._has_failed(error)

    def _end_deadlock(self) -> None:
        """Fail all waits: nothing more can happen."""
        now = max(self.clock)
        errors = self._explain()
        for rank, why in errors.items():
            awaited = self.waiting.awaited(rank)
            requests = [request for request in awaited if not isinstance(request, Blocked)]
            # threads that are blocked go on when others do
            self.waiting.fail_all(requests or awaited[:1], why, now)

    def _explain(self) -> dict[int, Exception]:
        """The error for each waiting rank, once nothing more can happen; the first time, what each waits for."""
        errors = self._diagnosis.errors()
        if not any(isinstance(error, MismatchError) for error in errors.values()):
            self.stuck = self.stuck or self._diagnosis.statuses()
        return errors

    def _has_failed(self, error: Exception) -> None:
        """Fail all present and future waits."""
        if not self.failure:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            self.failure = f"{type(error).__name__} in {Path(frame.f_code.co_filename).name}, line {line}"
        for request in self.waiting.all_awaited():
            self._give_up_after_failure(request)

    def _give_up_after_failure(self, request: Request) -> None:
        self.waiting.fail(request, scheduler_failed(self.failure))

    def is_ahead(self, rank: int) -> bool:
        """Whether anything is due before this rank's clock, so that it does not see the present state of others yet."""
        return self._agenda.is_due_before(self.clock[rank])

    def step_aside(self, rank: int) -> None:
        """Let the rank run on after all others have reached its clock: `next_rank` must be called now."""
        self._agenda.at(self.clock[rank], None, rank)

    def end(self, rank: int, failed: bool) -> None:
        """End the rank's program."""
        self.computing.end(rank)
        self.reach.ended[rank] = failed
        if failed:
            self._agenda.at(self.clock[rank], self._lose, rank)

    def go_on(self, ranks: Iterable[int]) -> None:
        """Start another program on these ended ranks, all from now on; those that had failed are back."""
        now = max(self.clock)
        self.clock[:] = [now] * len(self.clock)
        self.reach.lost.clear()
        self.reach.closed.clear()
        for rank in ranks:
            del self.reach.ended[rank]
            self._agenda.at(now, None, rank)

    def forget(self) -> None:
        """After all ranks have ended: drop unmatched requests and restart the groups' numbering."""
        self._messages.forget()
        self._matcher.forget()

    @property
    def trace(self) -> Trace:
        """The trace of everything so far."""
        return self.log.trace(self.topology, self.groups)

    # What ranks call ----------------------------------------------------------------------------------------------

    def join_group(self, rank: int, name: str, members: tuple[int, ...], backend: str) -> None:
        """Record that a rank has created a process group; every member must mean the same group by its name."""
        try:
            self.groups.join(rank, name, members, backend, self.clock[rank])
        except MismatchError as error:
            self.waiting.mismatched.setdefault(rank, error)
            raise

    def leave_group(self, rank: int, name: str) -> None:
        """Record that a rank has destroyed a process group."""
        self.groups.leave(rank, name, self.clock[rank])

    def post(self, rank: int, request: Request, at: float | None = None) -> Request:
        """Post a request; returns at once. Its errors are raised when the rank waits for it.

        `at`: the time of the stream on which it is posted, if that is not the rank's own (streams.py).
        """
        clock = self.clock[rank] if at is None else at
        if self.computing.stretches[rank] is not None:
            self.computing.end(rank)
        request.rank = rank
        request.posted = clock
        agenda = self._agenda
        agenda.order += 1
        request.order = self._order_of_requests = agenda.order
        entries = agenda.entries
        if entries and entries[0][0] < clock:
            heappush(entries, (clock, agenda.order, self._accept[request.__class__], request))
        else:
            try:
                self._accept[request.__class__](clock, request)
            except Exception as error:
                self._has_failed(error)
        return request

    def must_sleep(self, rank: int, request: Request, timeout: float = inf) -> bool:
        """Begin to wait: True if the rank has to sleep (`next_rank` returns it once the request is done).

        After `timeout` seconds the request fails.
        """
        if request.done_at is not None or request.error is not None:
            return False
        if self.failure:
            self._give_up_after_failure(request)
            return False
        self.waiting.begin(rank, request, timeout)
        return True

    def must_sleep_for_any(self, rank: int, waits: Sequence[tuple[Request, float]], restless: bool) -> bool:
        """Let several threads of a rank begin to wait, each for a request that fails at a limit on the clock.

        Returns False if one of these is over by the rank's clock. restless: a thread that waits for something else may
        run on by itself (`called_back` reports when). Without requests the rank sleeps until then.
        """
        if self.failure:
            for request, _ in waits:
                if request.done_at is None and request.error is None:
                    self._give_up_after_failure(request)
        if any(self.waiting.is_over(rank, request) for request, _ in waits):
            return False
        self.waiting.begin_several(rank, waits, restless)
        return True

    def is_done(self, rank: int, request: Request) -> bool:
        """Whether the request is complete by now. Asking takes a little time. The rank must not be ahead."""
        self.computing.end(rank)
        self.clock[rank] += POLL_SECONDS
        if self.waiting.is_over(rank, request):
            return True
        if request.done_at is None:
            if self.failure:
                self._give_up_after_failure(request)
                return True
            self._poll_in_vain(rank, request)
        return False

    def _poll_in_vain(self, rank: int, request: Request) -> None:
        """Raise DeadlockError when all ranks that could run have polled very often and nothing else has happened."""
        last, times = self._polls.get(rank, (-1, 0))
        self._polls[rank] = self._order_of_requests, (times + 1 if last == self._order_of_requests else 1)
        if times < MOST_POLLS or times % MOST_POLLS:
            return
        others = [r for r in range(len(self.clock)) if r not in self.reach.ended and r not in self.waiting.first]
        polls = [self._polls.get(r, (-1, 0)) for r in others]
        in_vain = all(last == self._order_of_requests and times >= MOST_POLLS for last, times in polls)
        if in_vain and self._agenda.has_turns_only():
            self.waiting.begin(rank, request, inf)
            report = self._explain()[rank]
            self.waiting.stop(rank)
            raise report

    # Ranks that fail, and requests that take too long ---------------------------------------------------------------

    def _kill_waiting(self, time: float, rank: int) -> None:
        """Kill the rank if it waits; one that runs is struck at its next step."""
        if rank in self.waiting.first:
            self.waiting.fail_all(self.waiting.awaited(rank), Killed(), time)

    def _lose(self, time: float, rank: int) -> None:
        """Withdraw a failed rank's pending requests, and fail those of others that it can no longer complete.

        Messages that it has sent arrive. Requests that have not reached the scheduler yet fail when they do.
        """
        self.reach.lost.add(rank)
        unmet = self._unmet()
        for request in unmet:
            if request.rank == rank and not isinstance(request, Send):
                self._withdraw(request)
        for request in unmet:
            if request.error is None and request.rank != rank:
                error = self.reach.lost_peer(request, self._diagnosis.waited_for(request))
                if error is not None:
                    self._withdraw(request)
                    self.waiting.fail(request, error, time)

    def _wait_timed_out(self, time: float, request: Request, seconds: float) -> None:
        """End a wait whose limit has passed."""
        if isinstance(request, Collective) and request.rank not in self.waiting.several:
            self.waiting.give_up(request.rank, self._diagnosis.wait_timed_out(request, seconds), time)
        else:
            self._give_up(time, request, self._diagnosis.timed_out(request, seconds))

    def _not_joined(self, time: float, request: Collective, known: MismatchError | None) -> None:
        """End a collective that not all members have joined within its limit."""
        self._give_up(time, request, known or self._diagnosis.timed_out(request, request.timeout))

    def _give_up(self, time: float, request: Request, error: BaseException) -> None:
        """Fail a request after a time-out. Its rank leaves the group with it, as with gloo, and others cannot reach it.

        A collective that another rank has joined fails at that rank's own limit, if it has one.
        """
        self._withdraw(request)
        self.waiting.fail(request, error, time)
        self.reach.closed.setdefault(request.group, set()).add(request.rank)
        for other in self._unmet():
            if other.error is not None or (isinstance(other, Collective) and other.timeout < inf):
                continue
            closed = self.reach.closed_group(other, self._diagnosis.waited_for(other))
            if closed is not None:
                self._withdraw(other)
                self.waiting.fail(other, closed, time)

    def _unmet(self) -> list[Send | Receive | Collective]:
        """Requests that nothing matches yet."""
        return [*self._messages.unmet(), *self._matcher.unmet()]

    def _withdraw(self, request: Request) -> None:
        """Remove a request that nobody waits for any more: nothing may match it."""
        if isinstance(request, Collective):
            self._matcher.withdraw(request)
        else:
            self._messages.withdraw(request)
