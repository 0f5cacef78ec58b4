"""Why nobody can go on: who waits for whom, in which operation, at which line, and the cycle if there is one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from labkit.clusters.run import ranges
from labkit.clusters.virtual.requests import Collective, Receive, Send

if TYPE_CHECKING:
    from labkit.clusters.virtual.engine import Engine, Operation


class DeadlockError(RuntimeError):
    """No rank can go on. The message says who waits for whom, where, and the cycle."""


class PeerFailed(RuntimeError):
    """This rank waited for one that had failed."""

    consequence = True


def explain(engine: Engine) -> dict[int, Exception]:
    """The error for each waiting rank, now that nothing more will happen."""
    waits = {rank: waited_for(engine, operation) for rank, operation in engine.waiting.items()}
    doomed = _reaching(waits, {rank for rank, failed in engine.ended.items() if failed})
    errors: dict[int, Exception] = {}
    for rank in doomed:
        operation = engine.waiting[rank]
        culprits = [peer for peer in waits[rank] if peer in doomed or engine.ended.get(peer)]
        errors[rank] = PeerFailed(
            f"waited in {operation.request} for rank{'s' * (len(culprits) > 1)} {ranges(culprits)}, which failed"
        )
    rest = {rank: peers for rank, peers in waits.items() if rank not in doomed}
    if rest:
        report = _report(engine, rest)
        errors.update({rank: DeadlockError(report) for rank in rest})
    return errors


def waited_for(engine: Engine, operation: Operation) -> list[int]:
    """The ranks that could end this wait."""
    request = operation.request
    if isinstance(request, Send):
        return [request.to]
    if isinstance(request, Receive):
        if request.source is not None:
            return [request.source]
        return [rank for rank in engine.groups[request.group] if rank != operation.rank]
    joined = operation.meeting.joined if operation.meeting else {}
    return [rank for rank in engine.groups[request.group] if rank not in joined]


def _reaching(waits: dict[int, list[int]], failed: set[int]) -> set[int]:
    """The waiting ranks whose every hope lies, at the end of the chain, with a rank that failed."""
    doomed: set[int] = set()
    while True:
        more = {r for r, peers in waits.items() if r not in doomed and any(p in failed or p in doomed for p in peers)}
        if not more:
            return doomed
        doomed |= more


def _report(engine: Engine, waits: dict[int, list[int]]) -> str:
    lines = ["no rank can go on:"]
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in sorted(waits):
        request = engine.waiting[rank].request
        alike[_general(request), request.line].append(rank)
    for (_, line), ranks in alike.items():
        for rank in ranks if len(waits) <= 8 else ranks[:2]:
            operation = engine.waiting[rank]
            note = _note(engine, operation, waits[rank])
            lines.append(f"  rank {rank} waits in {operation.request} at {line or 'an unknown line'}{note}")
        if len(waits) > 8 and len(ranks) > 2:
            lines.append(f"  ... and so do ranks {ranges(ranks[2:])}")
    cycle = _cycle(waits)
    if cycle:
        shown = cycle if len(cycle) <= 10 else [*cycle[:4], -1, *cycle[-3:]]
        lines.append("  cycle: " + " → ".join("..." if r < 0 else str(r) for r in shown))
        if all(isinstance(engine.waiting[r].request, Send) and not engine.receives_posted_by(r) for r in cycle):
            lines.append(
                "  each of them sends first, and a send ends only when its receive is posted: let one side receive "
                "first, or post the send with isend and wait for it after the receive"
            )
    return "\n".join(lines)


def _general(request: Send | Receive | Collective) -> str:
    return request.name if not isinstance(request, Collective) else str(request)


def _note(engine: Engine, operation: Operation, peers: list[int]) -> str:
    gone = [peer for peer in peers if peer in engine.ended]
    parts = []
    if isinstance(operation.request, Send):
        instead = engine.receives_posted_by(operation.request.to)
        if instead:
            parts.append(f"but rank {operation.request.to} receives {' and '.join(_from(r) for r in instead[:3])}")
    if isinstance(operation.request, Collective):
        parts.append(f"for rank{'s' * (len(peers) > 1)} {ranges(peers)} of the group of ranks "
                     f"{ranges(engine.groups[operation.request.group])}")  # fmt: skip
    if gone and len(gone) == len(peers):
        parts.append(f"but rank{'s' * (len(gone) > 1)} {ranges(gone)} ended without it")
    return ", " + ", ".join(parts) if parts else ""


def _from(receive: Receive) -> str:
    tag = f" with tag {receive.tag}" if receive.tag else ""
    return ("from any rank" if receive.source is None else f"from rank {receive.source}") + tag


def _cycle(waits: dict[int, list[int]]) -> list[int]:
    """A cycle of waiting ranks, its first rank repeated at the end; empty when there is none."""
    done: set[int] = set()
    for start in sorted(waits):
        path: list[int] = []
        rank: int | None = start
        while rank is not None and rank in waits and rank not in done and rank not in path:
            path.append(rank)
            rank = next((peer for peer in waits[rank] if peer in waits), None)
        if rank in path:
            cycle = path[path.index(rank) :]
            turn = cycle.index(min(cycle))
            return [*cycle[turn:], *cycle[:turn], cycle[turn]]
        done.update(path)
    return []
