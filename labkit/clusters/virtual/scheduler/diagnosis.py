"""Deadlock diagnosis: who waits for whom, in which operation, at which line, and the cycle if there is one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from labkit.clusters import cycles
from labkit.clusters.rank_status import PendingOperation, RankStatus
from labkit.clusters.run import ranges
from labkit.clusters.virtual.scheduler.faults import LinkDown
from labkit.clusters.virtual.scheduler.requests import (
    Blocked,
    Collective,
    Receive,
    Request,
    Send,
    ServiceCall,
    Timer,
    shown,
)

if TYPE_CHECKING:
    from labkit.clusters.virtual.scheduler.engine import Engine


SCHEDULER_FAILED = "the lab's scheduler failed"
_MOST_CALLS = 8
"""Maximum number of different calls of one collective that are named."""


class DeadlockError(RuntimeError):
    """No rank can go on. The message names who waits for whom, where, and the cycle."""


class MismatchError(RuntimeError):
    """Ranks requested incompatible operations: different collectives, dtypes, sizes or groups."""


class PeerFailed(RuntimeError):
    """This rank waited for one that had failed."""

    consequence = True


class SchedulerFailed(RuntimeError):
    """The lab's own scheduler failed: no rank can go on, and no rank is at fault."""


def explain(engine: Engine) -> dict[int, Exception]:
    """The error for each waiting rank, once nothing more can happen."""
    unlike = engine.matcher.unlike()
    if unlike:
        return unlike
    waits = _waits(engine)
    report = _report(engine, waits)
    engine.stuck = engine.stuck or [
        _status(rank, request) for rank in sorted(engine.waiting) for request in engine.awaited(rank)
    ]
    return {rank: DeadlockError(report) for rank in waits}


def _waits(engine: Engine) -> dict[int, list[int]]:
    return {
        rank: [peer for request in engine.awaited(rank) for peer in waited_for(engine, request)]
        for rank in engine.waiting
    }


def scheduler_failed(what: str) -> SchedulerFailed:
    return SchedulerFailed(f"{SCHEDULER_FAILED}, which is no fault of this program: {what}")


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


def waited_for(engine: Engine, request: Request) -> list[int]:
    """Ranks that could complete this request."""
    if isinstance(request, Send):
        return [request.to]
    if isinstance(request, Receive):
        if request.wanted is not None:
            return [request.wanted]
        return [rank for rank in engine.groups[request.group] if rank != request.rank]
    if isinstance(request, ServiceCall | Timer | Blocked):
        return []  # any rank, or thread of this one, could do what it waits for
    assert isinstance(request, Collective)
    joined = engine.matcher.joined(request)
    return [rank for rank in engine.groups[request.group] if rank not in joined]


def lost_peer(engine: Engine, request: Request) -> PeerFailed | None:
    """The error of a request that failed ranks make impossible; None if it is still possible."""
    peers = waited_for(engine, request)
    lost = [peer for peer in peers if peer in engine.lost]
    anybody = isinstance(request, Receive) and request.wanted is None
    if not lost or (anybody and len(lost) < len(peers)):
        return None
    return PeerFailed(f"waited in {request} for rank{'s' * (len(lost) > 1)} {ranges(lost)}, which failed")


def timed_out(engine: Engine, request: Request, seconds: float) -> RuntimeError:
    """The error of a request that was not done in time, in gloo's words; with a report if it is a deadlock, too."""
    which = "send" if isinstance(request, Send) else "recv"
    message = (
        f"[rank {request.rank}] Timed out waiting {seconds * 1000:g}ms for {which} operation to complete: {request} at "
        f"{request.line or 'an unknown line'}"
    )
    if engine.messages.is_under_way(request):
        return RuntimeError(f"{message}, while the message was under way: it takes longer than that")
    message += _note(engine, request, waited_for(engine, request))
    nobody_runs = len(engine.waiting) > 1 and len(engine.waiting) + len(engine.ended) == len(engine.clock)
    awaited = [other_request for rank in engine.waiting for other_request in engine.awaited(rank)]
    if nobody_runs and not any(map(engine.messages.is_under_way, awaited)):
        message += "\n" + _report(engine, _waits(engine))
    return RuntimeError(message)


def wait_timed_out(engine: Engine, request: Request, seconds: float) -> RuntimeError:
    """The error of a `Work.wait(timeout)` that was too short for a collective, which is still under way."""
    note = _note(engine, request, waited_for(engine, request))
    return RuntimeError(f"Operation timed out! {request} of {request.line} was not done in {seconds:g} s{note}")


def closed_group(engine: Engine, request: Request) -> RuntimeError | None:
    """The error of a request in a group that ranks have left after a time-out, in gloo's words; None if none has."""
    closed = engine.closed.get(request.group)
    if not closed:
        return None
    if request.rank in closed:
        return RuntimeError(
            f"Application timeout caused pair closure: rank {request.rank} has timed out in this group, so {request} "
            "cannot be done in it"
        )
    peers = waited_for(engine, request)
    gone = [rank for rank in peers if rank in closed]
    anybody = isinstance(request, Receive) and request.wanted is None
    if not gone or (anybody and len(gone) < len(peers)):
        return None
    return RuntimeError(f"Connection closed by peer: {_ranks(gone)} timed out in the group of {request}")


def unequal_message(send: Send, receive: Receive) -> MismatchError:
    """The error of a matched send and receive whose data differ in dtype or size."""
    return MismatchError(
        f"rank {send.rank} sends {shown(send.dtype, send.numel)} ({send.line or 'unknown line'}), but rank "
        f"{receive.rank} receives into {shown(receive.dtype, receive.numel)} ({receive.line or 'unknown line'})"
    )


def unlike_collectives(
    engine: Engine, number: int, members: tuple[int, ...], joined: dict[int, Collective]
) -> MismatchError:
    """The error of members that made different calls: who called what, at which line, and who called nothing."""
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in sorted(joined):
        alike[str(joined[rank]), joined[rank].line].append(rank)
    calls = [f"{_ranks(ranks)} called {call} ({line or 'unknown line'})" for (call, line), ranks in alike.items()]
    missing = [rank for rank in members if rank not in joined]
    gone = [rank for rank in missing if rank in engine.ended]
    if gone:
        calls.append(f"{_ranks(gone)} ended without it")
    elsewhere = [rank for rank in missing if rank not in engine.ended]
    if elsewhere:
        calls.append(f"{_ranks(elsewhere)} did not come to it")
    if len(calls) > _MOST_CALLS:
        calls[_MOST_CALLS:] = [f"... and {len(calls) - _MOST_CALLS} more that differ"]
    shown = ", ".join(calls) if len(calls) <= 2 else "".join(f"\n  {call}" for call in calls)
    return MismatchError(
        f"call number {number + 1} in the group of ranks {ranges(members)} differs:{' ' * (len(calls) <= 2)}{shown}"
    )


def incomplete_barrier(request: Collective, missing: list[int]) -> str:
    """Describe the ranks that did not reach a monitored barrier in time, in gloo's words."""
    named = missing if request.op else missing[:1]
    others = f", of the missing ranks {ranges(missing)}" if len(named) < len(missing) else ""
    return (
        f"[Rank {request.rank}]: Rank{'s' * (len(named) > 1)} {', '.join(map(str, named))} failed to pass "
        f"monitoredBarrier in {request.timeout * 1000:g} ms ({request.line or 'unknown line'}){others}"
    )


def given_up_barrier(
    joined: Collective, timed_out: Collective, members: tuple[int, ...], missing: list[int]
) -> RuntimeError:
    """The error of a rank that has joined a monitored barrier which then timed out, in gloo's words."""
    first = members[0]
    if joined.rank == first and joined.timeout == 0:
        return RuntimeError(f"[Rank {first}]: Rank {first} timed out in monitoredBarrier after 0 ms.")
    text = incomplete_barrier(timed_out, missing)
    if joined.rank == first:
        return RuntimeError(text)
    return RuntimeError(
        f"Rank {joined.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        f"from rank {first}. {text}"
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"


def cut_link(name: str, send: Send, receive: Receive) -> LinkDown:
    """The error of a message that reached a cut link."""
    return LinkDown(
        f"Connection closed by peer: the message from rank {send.rank} ({send.line or 'unknown line'}) to rank "
        f"{receive.rank} ({receive.line or 'unknown line'}) found a link that is cut: {name}"
    )


def cut_collective(name: str, request: Collective) -> LinkDown:
    """The error of a collective that needs a cut link."""
    return LinkDown(
        f"Connection closed by peer: {request} at {request.line or 'an unknown line'} found a link that is cut: {name}"
    )


def _report(engine: Engine, waits: dict[int, list[int]]) -> str:
    lines = ["no rank can go on:"]
    alike: dict[tuple[str, str], list[Request]] = defaultdict(list)
    requests = [request for rank in sorted(waits) for request in engine.awaited(rank)]
    for request in requests:
        alike[_general(request), request.line].append(request)
    for (_, line), ones in alike.items():
        for request in ones if len(waits) <= 8 else ones[:2]:
            note = _note(engine, request, waited_for(engine, request))
            lines.append(f"  rank {request.rank} waits in {request} at {line or 'an unknown line'}{note}")
        if len(waits) > 8 and len(ones) > 2:
            lines.append(f"  ... and so do ranks {ranges([request.rank for request in ones[2:]])}")
    cycle = cycles.find(waits)
    if cycle:
        lines.append(f"  {cycles.shown(cycle)}")
        if all(isinstance(engine.waiting[r], Send) and not engine.messages.posted_by(r) for r in cycle):
            lines.append(f"  {cycles.SENDS_FIRST}")
        if all(isinstance(engine.waiting[r], Receive) for r in cycle):
            lines.append(f"  {cycles.RECEIVES_FIRST}")
        groups = {engine.waiting[rank].group for rank in cycle}
        if len(groups) > 1 and all(isinstance(engine.waiting[rank], Collective) for rank in cycle):
            lines.append(f"  {cycles.in_other_order(sorted(groups))}")
    return "\n".join(lines)


def _general(request: Request) -> str:
    return request.name if not isinstance(request, Collective) else str(request)


def _note(engine: Engine, request: Request, peers: list[int]) -> str:
    gone = [peer for peer in peers if peer in engine.ended]
    parts = []
    if isinstance(request, ServiceCall):
        parts.append("and nobody does what it waits for")
    if isinstance(request, Send):
        instead = engine.messages.posted_by(request.to)
        if instead:
            parts.append(f"but rank {request.to} receives {' and '.join(_from(r) for r in instead[:3])}")
    if isinstance(request, Collective):
        parts.append(f"for rank{'s' * (len(peers) > 1)} {ranges(peers)} of the group of ranks "
                     f"{ranges(engine.groups[request.group])}")  # fmt: skip
    if gone and engine.apart.issuperset(peers):
        parts.append(f"but this cell does not run on rank{'s' * (len(gone) > 1)} {ranges(gone)}: leave out --ranks")
    elif gone and len(gone) == len(peers):
        parts.append(f"but rank{'s' * (len(gone) > 1)} {ranges(gone)} ended without it")
    return ", " + ", ".join(parts) if parts else ""


def _from(receive: Receive) -> str:
    tag = f" with tag {receive.tag}" if receive.tag else ""
    return ("from any rank" if receive.wanted is None else f"from rank {receive.wanted}") + tag
