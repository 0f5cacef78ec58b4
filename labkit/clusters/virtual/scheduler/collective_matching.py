"""Collective matching: members join a collective, and when all have joined, they get their results at one time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from labkit.clusters.virtual.scheduler import collectives, diagnosis, nccl_cost_model
from labkit.clusters.virtual.scheduler.requests import Collective, nbytes
from labkit.trace import Kind

if TYPE_CHECKING:
    from labkit.clusters.virtual.scheduler.engine import Engine

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

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._groups: dict[str, _GroupCalls] = {}

    def joined(self, request: Collective) -> dict[int, Collective]:
        """The members that have joined the collective of `request`, by rank."""
        calls = self._groups.get(request.group)
        return calls.pending.get(request.number, {}) if calls else {}

    def unmet(self) -> list[Collective]:
        """Requests of members of incomplete collectives."""
        pending = [arrived for calls in self._groups.values() for arrived in calls.pending.values()]
        return [request for arrived in pending for request in arrived.values()]

    def forget(self) -> None:
        """Forget all calls of all groups: the next one is number 0 on every rank."""
        self._groups.clear()

    def accept(self, now: float, request: Collective) -> None:
        calls = self._groups.get(request.group)
        if calls is None:
            members = self._engine.groups[request.group]
            calls = self._groups[request.group] = _GroupCalls(members, dict.fromkeys(members, 0))
        number = request.number = calls.made[request.rank]
        calls.made[request.rank] = number + 1
        if number in calls.given_up:
            self._engine.fail(request, RuntimeError(f"came too late: {calls.given_up[number]}"), now)
            return
        if self._engine.closed:
            closed = diagnosis.closed_group(self._engine, request)
            if closed is not None:
                self._engine.fail(request, closed, now)
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
                error = diagnosis.unlike_collectives(self._engine, number, calls.members, arrived)
                self._engine.fail_all(arrived.values(), error, now)
            else:
                self._hold(now, calls, [arrived[rank] for rank in calls.members])
            return
        if request.timeout < inf:
            self._look_at_limits(calls, request.posted + request.timeout, request.group)
        if self._engine.lost:
            lost = diagnosis.lost_peer(self._engine, request)
            if lost is not None:
                self._engine.fail(request, lost, now)

    def unlike(self) -> dict[int, Exception]:
        """The error for each waiting rank whose collective is impossible, since others made a different call."""
        errors: dict[int, Exception] = {}
        engine = self._engine
        for request in [request for rank in engine.waiting for request in engine.awaited(rank)]:
            if isinstance(request, Collective):
                calls = self._groups[request.group]
                if request.number in calls.unlike:
                    joined = calls.pending[request.number]
                    error = diagnosis.unlike_collectives(engine, request.number, calls.members, joined)
                    errors[request.rank] = error
        return errors

    def _look_at_limits(self, calls: _GroupCalls, due: float, group: str) -> None:
        """Look at the time limits of the group's incomplete collectives at that time, if not before."""
        if due < calls.next_limit:
            calls.next_limit = due
            self._engine.at(due, self._limits_are_due, group)

    def _limits_are_due(self, now: float, group: str) -> None:
        calls = self._groups.get(group)
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
            error = diagnosis.timed_out(self._engine, request, request.timeout)
            if request.number in calls.unlike:
                error = diagnosis.unlike_collectives(self._engine, request.number, calls.members, arrived)
            self._engine.give_up(request, error, now)
            return
        missing = [rank for rank in calls.members if rank not in arrived]
        for joined in arrived.values():
            self._engine.fail(joined, diagnosis.given_up_barrier(joined, request, calls.members, missing), now)
        del calls.pending[request.number], calls.signatures[request.number]
        calls.unlike.discard(request.number)
        calls.given_up[request.number] = diagnosis.incomplete_barrier(request, missing)

    def _hold(self, now: float, calls: _GroupCalls, requests: list[Collective]) -> None:
        first = requests[0]
        try:
            outputs = collectives.complete(requests)
        except diagnosis.MismatchError as error:
            self._engine.fail_all(requests, error, now)
            return
        except Exception as error:  # an operation that the dtype does not have, or parts that do not fit
            self._engine.fail_all(requests, RuntimeError(f"{first} cannot be done: {error}"), now)
            return
        sizes = [nbytes(request.tensors) for request in requests]
        # a group runs its collectives one after the other, as on one communication stream
        start = max(calls.busy_until, max(request.posted for request in requests))
        algorithm = "barrier" if first.name == "monitored_barrier" else first.name
        topology, pairs = self._engine.topology, collectives.bytes_by_pair(requests)
        plan = nccl_cost_model.choose(algorithm, max(sizes), calls.members, topology, max(first.root, 0), pairs)
        served, cut = self._engine.network.carry(plan, now, start)
        if cut:
            self._engine.fail_all(requests, diagnosis.cut_collective(cut, first), now)
            return
        end = max(start + plan.seconds, served)
        calls.busy_until = end
        events = self._engine.events
        for request, output, size in zip(requests, outputs, sizes, strict=True):
            request.result = output
            self._engine.complete(request, end)
            if events is not None:
                events.append(
                    (request.rank, _COLLECTIVE, request.name, request.posted, end, size, None, request.group,
                     request.number, request.line)
                )  # fmt: skip
