"""Which receive took in which send: the two events of every message of a trace."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from labkit.trace.events import Event, Kind
from labkit.trace.trace import Trace


def messages(trace: Trace) -> Iterator[tuple[Event, Event]]:
    """Each message as (send, receive), in the order of the receives.

    Virtual clusters number their messages. Elsewhere messages between two ranks of a group arrive in the order in which
    they were sent, so the k-th receive belongs to the k-th send. What was never received, or sent, is left out.
    """
    waiting: dict[tuple[object, ...], deque[Event]] = defaultdict(deque)
    for event in trace.events:
        if event.kind is Kind.SEND:
            waiting[event.rank, event.peer, event.group, event.sequence].append(event)
    for event in trace.events:
        if event.kind is Kind.RECEIVE:
            sent = waiting.get((event.peer, event.rank, event.group, event.sequence))
            if sent:
                yield sent.popleft(), event
