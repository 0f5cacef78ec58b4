"""Connection loss: when all failed ranks only lost a connection, find from the trace which peer they lost, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from labkit.clusters import hangs
from labkit.clusters.rank_result import RankResult
from labkit.clusters.rank_status import PendingOperation, RankStatus
from labkit.trace import Event, Kind, Trace

_EQUAL = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Collectives to which all ranks contribute the same number of bytes."""


def findings(ranks: Sequence[RankResult], trace: Trace) -> list[str]:
    """Mismatched calls, or ranks that ended while others still needed them; and what to try. May be empty."""
    lost = [result.rank for result in ranks if result.error is not None]
    if any(result.error is not None and not result.error.consequence for result in ranks):
        return []
    unlike = _unlike(trace)
    if unlike:
        return hangs.findings([_in(event, trace) for event in unlike])
    last: dict[int, Event] = {}
    for event in trace.events:
        if event.kind is not Kind.COMPUTE and (event.rank not in last or event.start > last[event.rank].start):
            last[event.rank] = event
    ended = [RankStatus(result.rank, exit=0) for result in ranks if result.error is None and result.exit == 0]
    return hangs.findings([*(_in(last[rank], trace) for rank in lost if rank in last), *ended]) if ended else []


def amounts(trace: Trace) -> list[str]:
    """One line with each rank's bytes in the first call where they differ; empty if there is no such call."""
    events = _unlike(trace)
    if len({event.operation for event in events}) != 1:
        return []
    sizes = ", ".join(f"{event.nbytes} B on rank {event.rank}" for event in sorted(events, key=lambda e: e.rank)[:8])
    return [f"{events[0].operation} #{events[0].sequence + 1} was called with {sizes}"]


def _unlike(trace: Trace) -> list[Event]:
    """Events of the first call in which ranks of a group called different collectives or passed different sizes."""
    calls: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.kind is Kind.COLLECTIVE:
            calls[event.group, event.sequence].append(event)
    for events in sorted(calls.values(), key=lambda events: min(event.start for event in events)):
        names = {event.operation for event in events}
        sizes = {event.nbytes for event in events}
        if len(names) > 1 or (len(sizes) > 1 and names <= {*_EQUAL}):
            return events
    return []


def _in(event: Event, trace: Trace) -> RankStatus:
    kind = event.kind.value
    peer = -1 if event.peer is None else event.peer
    members = tuple(trace.groups.get(event.group, ()))
    operation = PendingOperation(
        kind, event.operation, event.group, members, event.sequence, peer, 0, event.nbytes, event.line, waited_for=True
    )
    return RankStatus(event.rank, under_way=(operation,))
