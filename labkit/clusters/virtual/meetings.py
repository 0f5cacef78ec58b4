"""Collectives of the virtual cluster: their members gather, then all get their results at one time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from labkit.clusters.virtual import collectives, diagnosis, timing
from labkit.clusters.virtual.requests import Collective, nbytes
from labkit.trace import Kind

if TYPE_CHECKING:
    from labkit.clusters.virtual.engine import Engine

_COLLECTIVE = Kind.COLLECTIVE.value


@dataclass(slots=True, eq=False)
class _Calls:
    """What one process group has called: collectives are numbered, each rank counts its own."""

    members: tuple[int, ...]
    made: dict[int, int]
    """How many each rank has called."""
    meetings: dict[int, dict[int, Collective]] = field(default_factory=dict)
    """By number: who has joined so far, by rank."""
    signatures: dict[int, Any] = field(default_factory=dict)
    """By number: what the first to join asked for."""
    unlike: set[int] = field(default_factory=set)
    """Numbers of meetings to which members came with different calls: told when all are there, or nobody can go on."""
    given_up: dict[int, str] = field(default_factory=dict)
    """By number: why those who had joined a monitored barrier have left it."""
    busy_until: float = 0.0


class Meetings:
    """The collectives of all groups that gather their members."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._groups: dict[str, _Calls] = {}

    def joined(self, request: Collective) -> dict[int, Collective]:
        """Who has joined the collective that `request` waits in, by rank."""
        calls = self._groups.get(request.group)
        return calls.meetings.get(request.number, {}) if calls else {}

    def unmet(self) -> list[Collective]:
        """Requests of those who have joined a collective that is not complete."""
        meetings = [meeting for calls in self._groups.values() for meeting in calls.meetings.values()]
        return [request for meeting in meetings for request in meeting.values()]

    def forget(self) -> None:
        """All calls of all groups: the next one is number 0 on every rank."""
        self._groups.clear()

    def accept(self, now: float, request: Collective) -> None:
        calls = self._groups.get(request.group)
        if calls is None:
            members = self._engine.groups[request.group]
            calls = self._groups[request.group] = _Calls(members, dict.fromkeys(members, 0))
        number = request.number = calls.made[request.rank]
        calls.made[request.rank] = number + 1
        if number in calls.given_up:
            self._engine.fail(request, RuntimeError(f"came too late: {calls.given_up[number]}"), now)
            return
        signature = collectives.signature(request)
        meeting = calls.meetings.get(number)
        if meeting is None:
            meeting = calls.meetings[number] = {}
            calls.signatures[number] = signature
        elif calls.signatures[number] != signature:
            calls.unlike.add(number)
        meeting[request.rank] = request
        if len(meeting) == len(calls.members):
            del calls.meetings[number], calls.signatures[number]
            if number in calls.unlike:
                calls.unlike.remove(number)
                error = diagnosis.unlike_collectives(self._engine, number, calls.members, meeting)
                self._engine.fail_all(meeting.values(), error, now)
            else:
                self._hold(now, calls, [meeting[rank] for rank in calls.members])
            return
        if request.timeout < inf:
            self._engine.at(now + request.timeout, self._give_up, request)
        if self._engine.lost:
            lost = diagnosis.lost_peer(self._engine, request)
            if lost is not None:
                self._engine.fail(request, lost, now)

    def unlike(self) -> dict[int, Exception]:
        """The error for each waiting rank whose collective cannot take place, since others called something else."""
        errors: dict[int, Exception] = {}
        engine = self._engine
        for request in [request for rank in engine.waiting for request in engine.awaited(rank)]:
            if isinstance(request, Collective):
                calls = self._groups[request.group]
                if request.number in calls.unlike:
                    joined = calls.meetings[request.number]
                    error = diagnosis.unlike_collectives(engine, request.number, calls.members, joined)
                    errors[request.rank] = error
        return errors

    def _give_up(self, now: float, request: Collective) -> None:
        """The time of a monitored barrier is over."""
        calls = self._groups[request.group]
        meeting = calls.meetings.get(request.number)
        if meeting is not None and request.error is None:
            missing = [rank for rank in calls.members if rank not in meeting]
            del calls.meetings[request.number], calls.signatures[request.number]
            calls.unlike.discard(request.number)
            why = calls.given_up[request.number] = diagnosis.incomplete_barrier(request, missing)
            self._engine.fail_all(meeting.values(), RuntimeError(why), now)

    def _hold(self, now: float, calls: _Calls, requests: list[Collective]) -> None:
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
        plan = timing.choose(algorithm, max(sizes), calls.members, self._engine.topology, max(first.root, 0))
        served, cut = self._engine.network.carry(plan, start)
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
