"""Deadlock diagnosis: who waits for whom, in which operation, at which line, and the cycle if there is one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from labkit.clusters import cycles
from labkit.clusters.rank_lists import named_ranks, ranges
from labkit.clusters.rank_status import PendingOperation, RankStatus
from labkit.clusters.virtual.scheduler.collective_matching import CollectiveMatcher
from labkit.clusters.virtual.scheduler.errors import DeadlockError
from labkit.clusters.virtual.scheduler.groups import Groups
from labkit.clusters.virtual.scheduler.messages import Messages
from labkit.clusters.virtual.scheduler.reach import Reach
from labkit.clusters.virtual.scheduler.requests import Collective, Receive, Request, Send, StoreCall
from labkit.clusters.virtual.scheduler.waiting_ranks import WaitingRanks


class Diagnosis:
    """Reads the state of all ranks and says why they wait. It changes nothing."""

    def __init__(
        self, waiting: WaitingRanks, groups: Groups, reach: Reach, messages: Messages, matcher: CollectiveMatcher
    ) -> None:
        self._waiting, self._groups, self._reach = waiting, groups, reach
        self._messages, self._matcher = messages, matcher

    def errors(self) -> dict[int, Exception]:
        """The error for each waiting rank, once nothing more can happen."""
        unlike = self._matcher.unlike(self._waiting.all_awaited())
        if unlike:
            return unlike
        waits = self._waits()
        report = self._report(waits)
        return {rank: DeadlockError(report) for rank in waits}

    def statuses(self) -> list[RankStatus]:
        """The waiting ranks, and what each waits for."""
        return [
            _status(rank, request) for rank in sorted(self._waiting.first) for request in self._waiting.awaited(rank)
        ]

    def timed_out(self, request: Request, seconds: float) -> RuntimeError:
        """The error of a request that was not done in time, in gloo's words; with a report if it is a deadlock, too."""
        which = "send" if isinstance(request, Send) else "recv"
        message = (
            f"[rank {request.rank}] Timed out waiting {seconds * 1000:g}ms for {which} operation to complete: "
            f"{request} at {request.line or 'an unknown line'}"
        )
        if self._messages.is_under_way(request):
            return RuntimeError(f"{message}, while the message was under way: it takes longer than that")
        message += self._note(request, self.waited_for(request))
        waiting = len(self._waiting.first)
        nobody_runs = waiting > 1 and waiting + len(self._reach.ended) == self._reach.world_size
        if nobody_runs and not any(map(self._messages.is_under_way, self._waiting.all_awaited())):
            message += "\n" + self._report(self._waits())
        return RuntimeError(message)

    def wait_timed_out(self, request: Request, seconds: float) -> RuntimeError:
        """The error of a `Work.wait(timeout)` that was too short for a collective, which is still under way."""
        note = self._note(request, self.waited_for(request))
        return RuntimeError(f"Operation timed out! {request} of {request.line} was not done in {seconds:g} s{note}")

    def waited_for(self, request: Request) -> Sequence[int]:
        """Ranks that could complete this request."""
        if isinstance(request, Send | Receive):
            return self._messages.peers(request)
        if isinstance(request, Collective):
            return self._matcher.peers(request)
        return []  # any rank, or a thread of this one, could do what it waits for

    def _waits(self) -> dict[int, list[int]]:
        return {
            rank: [peer for request in self._waiting.awaited(rank) for peer in self.waited_for(request)]
            for rank in self._waiting.first
        }

    def _report(self, waits: dict[int, list[int]]) -> str:
        lines = ["no rank can go on:"]
        alike: dict[tuple[str, str], list[Request]] = defaultdict(list)
        requests = [request for rank in sorted(waits) for request in self._waiting.awaited(rank)]
        for request in requests:
            alike[_general(request), request.line].append(request)
        for (_, line), ones in alike.items():
            for request in ones if len(waits) <= 8 else ones[:2]:
                note = self._note(request, self.waited_for(request))
                lines.append(f"  rank {request.rank} waits in {request} at {line or 'an unknown line'}{note}")
            if len(waits) > 8 and len(ones) > 2:
                lines.append(f"  ... and so do ranks {ranges([request.rank for request in ones[2:]])}")
        cycle = cycles.find(waits)
        if cycle:
            lines += [f"  {line}" for line in self._about_cycle(cycle)]
        return "\n".join(lines)

    def _about_cycle(self, cycle: Sequence[int]) -> list[str]:
        lines = [cycles.shown(cycle)]
        requests = [self._waiting.first[rank] for rank in cycle]
        if all(isinstance(request, Send) and not self._messages.posted_by(request.rank) for request in requests):
            lines.append(cycles.SENDS_FIRST)
        if all(isinstance(request, Receive) for request in requests):
            lines.append(cycles.RECEIVES_FIRST)
        groups = {request.group for request in requests}
        if len(groups) > 1 and all(isinstance(request, Collective) for request in requests):
            lines.append(cycles.in_other_order(sorted(groups)))
        return lines

    def _note(self, request: Request, peers: Sequence[int]) -> str:
        parts = []
        if isinstance(request, StoreCall):
            parts.append("and nobody does what it waits for")
        if isinstance(request, Send):
            instead = self._messages.posted_by(request.to)
            if instead:
                parts.append(f"but rank {request.to} receives {' and '.join(_from(r) for r in instead[:3])}")
        if isinstance(request, Collective):
            members = ranges(self._groups.members[request.group])
            parts.append(f"for {named_ranks(peers)} of the group of ranks {members}")
        gone = self._reach.how_they_are_gone(peers)
        if gone:
            parts.append(gone)
        return ", " + ", ".join(parts) if parts else ""


def _status(rank: int, request: Request) -> RankStatus:
    kind, peer = "other", -1
    if isinstance(request, Send):
        kind, peer = "send", request.to
    elif isinstance(request, Receive):
        kind, peer = "receive", -1 if request.wanted is None else request.wanted
    elif isinstance(request, Collective):
        kind = "collective"
    return RankStatus(
        rank, under_way=(PendingOperation(kind, request.name, peer=peer, line=request.line, waited_for=True),)
    )


def _general(request: Request) -> str:
    return request.name if not isinstance(request, Collective) else str(request)


def _from(receive: Receive) -> str:
    tag = f" with tag {receive.tag}" if receive.tag else ""
    return ("from any rank" if receive.wanted is None else f"from rank {receive.wanted}") + tag
