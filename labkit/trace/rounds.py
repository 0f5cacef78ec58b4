"""How many messages had to travel one after the other: the rounds of an algorithm, whatever the network's speed."""

from __future__ import annotations

from collections import defaultdict

from labkit.trace.events import Event
from labkit.trace.messages import messages
from labkit.trace.trace import Trace


def rounds(trace: Trace) -> int:
    """The longest chain of messages in `trace`, each of which had to wait for the one before it; 0 without messages.

    A rank sends one message at a time and receives one at a time, but may do both at once. A message also waits for
    what its sender had done before it sent, and its receiver before it asked for it: the one-port model of Bar-Noy &
    Kipnis, "Designing broadcasting algorithms in the postal model" (1994), with all messages of one length.
    """
    out_of: dict[int, int] = defaultdict(int)
    into: dict[int, int] = defaultdict(int)
    done: dict[int, list[tuple[float, int]]] = defaultdict(list)
    """Of each rank's messages until now: when they were over there, and their round."""
    longest = 0
    for sent, received in sorted(messages(trace), key=lambda pair: max(pair[0].start, pair[1].start)):
        waited_for = max(_over(done[sent.rank], sent), _over(done[received.rank], received))
        number = 1 + max(waited_for, out_of[sent.rank], into[received.rank])
        out_of[sent.rank] = into[received.rank] = number
        done[sent.rank].append((sent.end, number))
        done[received.rank].append((received.end, number))
        longest = max(longest, number)
    return longest


def _over(done: list[tuple[float, int]], event: Event) -> int:
    """The latest round that was over when the rank asked for `event`."""
    return max((number for end, number in done if end <= event.start), default=0)
