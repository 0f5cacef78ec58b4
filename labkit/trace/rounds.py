"""Rounds of an algorithm: how many messages had to travel one after the other, independent of the network's speed."""

from __future__ import annotations

from collections import defaultdict

from labkit.trace.events import Event
from labkit.trace.messages import messages
from labkit.trace.trace import Trace

Round = list[tuple[int, int]]
"""(source, destination) of each message of a round: global ranks."""


def rounds(trace: Trace) -> int:
    """Length of the longest chain of messages in `trace` that each waited for the one before; 0 without messages."""
    return len(message_rounds(trace))


def message_rounds(trace: Trace) -> list[Round]:
    """The messages of `trace`, each in the first round in which it could travel.

    A rank sends one message at a time and receives one at a time, but may do both at once. A message also waits for the
    earlier messages of its sender, before the send, and of its receiver, before the receive: the one-port model of
    Bar-Noy & Kipnis, "Designing broadcasting algorithms in the postal model" (1994), with all messages of one length.
    In a measured trace, where a message may leave before its receiver requests it, the result may be one round too
    many.
    """
    out_of: dict[int, int] = defaultdict(int)
    into: dict[int, int] = defaultdict(int)
    done: dict[int, list[tuple[float, int]]] = defaultdict(list)
    """Messages of each rank so far: the time when each was over there, and the number of rounds over by then."""
    by_number: list[Round] = []
    for sent, received in sorted(messages(trace), key=lambda pair: max(pair[0].start, pair[1].start)):
        waited_for = max(_over(done[sent.rank], sent), _over(done[received.rank], received))
        number = max(waited_for, out_of[sent.rank], into[received.rank])
        if number == len(by_number):
            by_number.append([])
        by_number[number].append((sent.rank, received.rank))
        out_of[sent.rank] = into[received.rank] = number + 1
        done[sent.rank].append((sent.end, number + 1))
        done[received.rank].append((received.end, number + 1))
    return by_number


def _over(done: list[tuple[float, int]], event: Event) -> int:
    """Number of rounds that were over when the rank requested `event`."""
    return max((number for end, number in done if end <= event.start), default=0)
