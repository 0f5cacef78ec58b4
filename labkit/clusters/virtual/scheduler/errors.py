"""Errors that the scheduler raises on ranks, and their texts: who asked for what, at which line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from labkit.clusters.rank_lists import named_ranks, ranges
from labkit.clusters.virtual.scheduler.requests import Collective, Receive, Send, shown

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


class LinkDown(RuntimeError):
    """A message could not travel: a link on its route is cut."""


class Killed(SystemExit):
    """Raised in a rank that is killed. No `except Exception` of a learner catches it."""

    def __init__(self, code: int = -9) -> None:
        super().__init__(code)


def scheduler_failed(what: str) -> SchedulerFailed:
    """The error of every rank after the scheduler's own first error, `what`."""
    return SchedulerFailed(f"{SCHEDULER_FAILED}, which is no fault of this program: {what}")


def unequal_message(send: Send, receive: Receive) -> MismatchError:
    """The error of a matched send and receive whose data differ in dtype or size."""
    return MismatchError(
        f"rank {send.rank} sends {shown(send.dtype, send.numel)} ({send.line or 'unknown line'}), but rank "
        f"{receive.rank} receives into {shown(receive.dtype, receive.numel)} ({receive.line or 'unknown line'})"
    )


def unlike_collectives(
    number: int, members: tuple[int, ...], joined: Mapping[int, Collective], ended: Collection[int]
) -> MismatchError:
    """The error of members that made different calls: who called what, at which line, and who called nothing.

    joined: the members' requests, by rank. ended: ranks whose program has ended.
    """
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in sorted(joined):
        alike[str(joined[rank]), joined[rank].line].append(rank)
    calls = [f"{named_ranks(ranks)} called {call} ({line or 'unknown line'})" for (call, line), ranks in alike.items()]
    missing = [rank for rank in members if rank not in joined]
    gone = [rank for rank in missing if rank in ended]
    if gone:
        calls.append(f"{named_ranks(gone)} ended without it")
    elsewhere = [rank for rank in missing if rank not in ended]
    if elsewhere:
        calls.append(f"{named_ranks(elsewhere)} did not come to it")
    if len(calls) > _MOST_CALLS:
        calls[_MOST_CALLS:] = [f"... and {len(calls) - _MOST_CALLS} more that differ"]
    shown_calls = ", ".join(calls) if len(calls) <= 2 else "".join(f"\n  {call}" for call in calls)
    return MismatchError(
        f"call number {number + 1} in the group of ranks {ranges(members)} differs:"
        f"{' ' * (len(calls) <= 2)}{shown_calls}"
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
