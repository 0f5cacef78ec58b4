"""Matching of events: the send and the receive of a message, and a collective's calls on all its ranks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from labkit.trace.events import Event, Kind
from labkit.trace.trace import Trace


def messages(trace: Trace) -> Iterator[tuple[Event, Event]]:
    """Each message as (send, receive), in the order of the receives.

    Messages are numbered (`Event.sequence`). If two ranks of a group use a number twice, the k-th receive belongs to
    the k-th send. Sends and receives without a partner are left out.
    """
    return ((trace.events[sent], trace.events[received]) for sent, received in message_numbers(trace))


def message_numbers(trace: Trace) -> Iterator[tuple[int, int]]:
    """Like `messages`, with the indices of the two events in `trace.events`."""
    waiting: dict[tuple[object, ...], deque[int]] = defaultdict(deque)
    for number, event in enumerate(trace.events):
        if event.kind is Kind.SEND:
            waiting[event.rank, event.peer, event.group, event.sequence].append(number)
    for number, event in enumerate(trace.events):
        if event.kind is Kind.RECEIVE:
            sent = waiting.get((event.peer, event.rank, event.group, event.sequence))
            if sent:
                yield sent.popleft(), number


def parties(trace: Trace) -> list[tuple[int, ...]]:
    """For every event the indices in `trace.events` of all events of the same operation, including its own.

    Two for a message, one for each rank of a collective, the event alone for computing and for unmatched events.
    """
    by_event: list[tuple[int, ...]] = [(number,) for number in range(len(trace.events))]
    calls: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, event in enumerate(trace.events):
        if event.kind is Kind.COLLECTIVE and event.sequence >= 0:
            calls[event.group, event.sequence].append(number)
    for together in (*message_numbers(trace), *map(tuple, calls.values())):
        for number in together:
            by_event[number] = together
    return by_event


def begins(trace: Trace) -> list[float]:
    """For every event the time, in seconds, at which it could begin: when the last of its parties had requested it."""
    times = [event.start for event in trace.events]
    # each collective once: its calls share one tuple of parties
    for together in {id(together): together for together in parties(trace) if len(together) > 1}.values():
        latest = max(trace.events[number].start for number in together)
        for number in together:
            times[number] = latest
    return times
