"""Collective matching: members join a collective, and when all have joined, they get their results at one time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from labkit.clusters.virtual.scheduler import collectives, errors, nccl_cost_model
from labkit.clusters.virtual.scheduler.agenda import Agenda
from labkit.clusters.virtual.scheduler.errors import MismatchError
from labkit.clusters.virtual.scheduler.event_log import EventLog
from labkit.clusters.virtual.scheduler.groups import Groups
from labkit.clusters.virtual.scheduler.network import Network
from labkit.clusters.virtual.scheduler.reach import Reach
from labkit.clusters.virtual.scheduler.requests import Collective, Request, nbytes
from labkit.clusters.virtual.scheduler.waiting_ranks import WaitingRanks
from labkit.trace import Kind

_COLLECTIVE = Kind.COLLECTIVE.value


@dataclass(slots=True, eq=False)
class _GroupCalls:
    """The collectives of one process group: each rank numbers its own calls."""

    members: tuple[int, ...]
    made: dict[int, int]
    """Number of calls of each rank."""
    pending: dict[int, dict[int, Collective]] = field(default_factory=dict)
    """Members that have joined each collective so far, by its number and by rank."""
    signatures: dict[int, Any] = field(default_factory=dict)
    """Signature of the first member to join each collective, by number."""
    unlike: set[int] = field(default_factory=set)
    """Numbers of collectives with different calls; reported when all members are there, or when no rank can go on."""
    given_up: dict[int, str] = field(default_factory=dict)
    """Reason why the members that had joined a monitored barrier gave it up, by number."""
    busy_until: float = 0.0
    next_limit: float = inf
    """Time of the next check of the limits of incomplete collectives."""


class CollectiveMatcher:
    """The collectives of all groups that wait for members."""

    def __init__(
        self,
        agenda: Agenda,
        waiting: WaitingRanks,
        groups: Groups,
        reach: Reach,
        network: Network,
        log: EventLog,
        timed_out: Callable[[float, Collective, MismatchError | None], None],
    ) -> None:
        """timed_out: called as `timed_out(time, request, error)` when members have not joined `request` in time.

        Its error is the reason if that is known.
        """
        self._agenda, self._waiting, self._groups, self._reach = agenda, waiting, groups, reach
        self._network, self._log, self._timed_out = network, log, timed_out
        self._calls: dict[str, _GroupCalls] = {}
        """The calls of each group."""

    def peers(self, request: Collective) -> list[int]:
        """Members that have not joined the collective of `request`."""
        joined = self._joined(request)
        return [rank for rank in self._groups.members[request.group] if rank not in joined]

    def withdraw(self, request: Collective) -> None:
        """Let the rank that has joined an incomplete collective leave it."""
        self._joined(request).pop(request.rank, None)

    def _joined(self, request: Collective) -> dict[int, Collective]:
        """The members that have joined the collective of `request`, by rank."""
        calls = self._calls.get(request.group)
        return calls.pending.get(request.number, {}) if calls else {}

    def unmet(self) -> list[Collective]:
        """Requests of members of incomplete collectives."""
        pending = [arrived for calls in self._calls.values() for arrived in calls.pending.values()]
        return [request for arrived in pending for request in arrived.values()]

    def forget(self) -> None:
        """Forget all calls of all groups: the next one is number 0 on every rank."""
        self._calls.clear()

    def accept(self, now: float, request: Collective) -> None:
        calls = self._calls.get(request.group)
        if calls is None:
            members = self._groups.members[request.group]
            calls = self._calls[request.group] = _GroupCalls(members, dict.fromkeys(members, 0))
        number = request.number = calls.made[request.rank]
        calls.made[request.rank] = number + 1
        if number in calls.given_up:
            self._waiting.fail(request, RuntimeError(f"came too late: {calls.given_up[number]}"), now)
            return
        if self._reach.closed:
            closed = self._reach.closed_group(request, self.peers(request))
            if closed is not None:
                self._waiting.fail(request, closed, now)
                return
        signature = collectives.signature(request)
        arrived = calls.pending.get(number)
        if arrived is None:
            arrived = calls.pending[number] = {}
            calls.signatures[number] = signature
        elif calls.signatures[number] != signature:
            calls.unlike.add(number)
        arrived[request.rank] = request
        if len(arrived) == len(calls.members):
            del calls.pending[number], calls.signatures[number]
            if number in calls.unlike:
                calls.unlike.remove(number)
                self._waiting.fail_all(arrived.values(), self._unlike(calls, number, arrived), now)
            else:
                self._hold(now, calls, [arrived[rank] for rank in calls.members])
            return
        if request.timeout < inf:
            self._look_at_limits(calls, request.posted + request.timeout, request.group)
        if self._reach.lost:
            lost = self._reach.lost_peer(request, self.peers(request))
            if lost is not None:
                self._waiting.fail(request, lost, now)

    def unlike(self, requests: Iterable[Request]) -> dict[int, Exception]:
        """The error for each rank among `requests` whose collective is impossible, since others made another call."""
        impossible: dict[int, Exception] = {}
        for request in requests:
            if isinstance(request, Collective):
                calls = self._calls[request.group]
                if request.number in calls.unlike:
                    impossible[request.rank] = self._unlike(calls, request.number, calls.pending[request.number])
        return impossible

    def _unlike(self, calls: _GroupCalls, number: int, joined: dict[int, Collective]) -> MismatchError:
        return errors.unlike_collectives(number, calls.members, joined, self._reach.ended)

    def _look_at_limits(self, calls: _GroupCalls, due: float, group: str) -> None:
        """Look at the time limits of the group's incomplete collectives at that time, if not before."""
        if due < calls.next_limit:
            calls.next_limit = due
            self._agenda.at(due, self._limits_are_due, group)

    def _limits_are_due(self, now: float, group: str) -> None:
        calls = self._calls.get(group)
        if calls is None:
            return
        calls.next_limit = inf
        for request in [request for arrived in calls.pending.values() for request in arrived.values()]:
            due = request.posted + request.timeout
            if due > now:
                self._look_at_limits(calls, due, group)
            elif request.error is None:
                self._give_up(now, calls, request)

    def _give_up(self, now: float, calls: _GroupCalls, request: Collective) -> None:
        """Fail the collective of `request`: not all members have joined in time."""
        arrived = calls.pending[request.number]
        if request.name != "monitored_barrier":
            is_unlike = request.number in calls.unlike
            self._timed_out(now, request, self._unlike(calls, request.number, arrived) if is_unlike else None)
            return
        missing = [rank for rank in calls.members if rank not in arrived]
        for joined in arrived.values():
            self._waiting.fail(joined, errors.given_up_barrier(joined, request, calls.members, missing), now)
        del calls.pending[request.number], calls.signatures[request.number]
        calls.unlike.discard(request.number)
        calls.given_up[request.number] = errors.incomplete_barrier(request, missing)

    def _hold(self, now: float, calls: _GroupCalls, requests: list[Collective]) -> None:
        first = requests[0]
        try:
            outputs = collectives.complete(requests)
        except MismatchError as error:
            self._waiting.fail_all(requests, error, now)
            return
        except Exception as error:  # an operation that the dtype does not have, or parts that do not fit
            self._waiting.fail_all(requests, RuntimeError(f"{first} cannot be done: {error}"), now)
            return
        sizes = [nbytes(request.tensors) for request in requests]
        # a group runs its collectives one after the other, as on one communication stream
        start = max(calls.busy_until, max(request.posted for request in requests))
        algorithm = "barrier" if first.name == "monitored_barrier" else first.name
        topology, pairs = self._network.topology, collectives.bytes_by_pair(requests)
        plan = nccl_cost_model.choose(algorithm, max(sizes), calls.members, topology, max(first.root, 0), pairs)
        served, cut = self._network.carry(plan, now, start)
        if cut:
            self._waiting.fail_all(requests, errors.cut_collective(cut, first), now)
            return
        end = max(start + plan.seconds, served)
        calls.busy_until = end
        rows = self._log.rows
        for request, output, size in zip(requests, outputs, sizes, strict=True):
            request.result = output
            self._waiting.complete(request, end)
            if rows is not None:
                rows.append(
                    (request.rank, _COLLECTIVE, request.name, request.posted, end, size, None, request.group,
                     request.number, request.line)
                )  # fmt: skip
