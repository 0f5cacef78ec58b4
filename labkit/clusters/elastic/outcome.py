"""One `Run` from the reports of all nodes and attempts: the last one's results, and why there was more than one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit.clusters.elastic.attempts import Attempt, NodeLoss
from labkit.clusters.forkserver.collector import OutputTail
from labkit.clusters.rank_result import RankResult
from labkit.clusters.run import Run, ending
from labkit.trace import Trace

_JOINED = "because a node joined"
NodeReports = Sequence[tuple[NodeLoss | None, Sequence[Attempt]]]
"""Reports of each node: its loss if it is gone, and its attempts."""


def merged(
    reported: NodeReports,
    output: Mapping[int, OutputTail],
    notes: Sequence[str],
    wall_seconds: float,
    stopped: str,
    last_words: Sequence[str],
) -> Run:
    """notes: notes of ranks and agents. last_words: last output of agents that failed by themselves."""
    numbers = sorted({attempt.number for _, attempts in reported for attempt in attempts})
    if not numbers:
        reasons = "; ".join(words.strip().splitlines()[-1] for words in last_words if words.strip())
        return Run((), Trace(0), wall_seconds, stopped or f"no rank was started: {reasons or 'no agent said why'}", ())
    last = _of(reported, numbers[-1])
    world_size = last[0].world_size
    results = {result.rank: result for part in last for result in part.results}
    ranks = [results.get(rank, RankResult(rank, exit=None)) for rank in range(world_size)]
    traces = [trace for part in last for trace in part.traces]
    return Run(
        ranks=[replace(result, output=output[result.rank].text() if result.rank in output else "") for result in ranks],
        trace=Trace.merged(traces) if traces else Trace(world_size),
        wall_seconds=wall_seconds,
        stopped=stopped,
        notes=tuple(dict.fromkeys([*_restarts(reported, numbers), *notes])),
    )


def why_restarted(reported: NodeReports, number: int, following: int | None = None) -> str:
    """The reason why attempt `number` was not the last: `after rank 2 failed: ValueError at Cell In[3], line 5`.

    following: the number of the next one, if known.
    """
    gone = [gone for gone, attempts in reported if gone and attempts and attempts[-1].number == number]
    if gone:
        return "after " + ", ".join(f"{loss.node} {loss.how}" for loss in gone)
    parts = _of(reported, number)
    # agents notice a joining node one after the other: ranks that stop first make those of other nodes fail
    if following is not None and _has_joined(reported, number, following):
        return _JOINED
    first = Run([result for part in parts for result in part.results]).first_failure
    if first is None or (first.exit is None and first.error is None):
        return _JOINED
    if first.error is None or first.error.is_mere_end:
        return f"after rank {first.rank} {ending(first.exit)}"
    at = f" at {first.error.where}" if first.error.where else ""
    return f"after rank {first.rank} failed: {first.error.type}{at}"


def _of(reported: NodeReports, number: int) -> list[Attempt]:
    """The attempt of this number from each node; if a node is gone now, so are its ranks."""
    parts = []
    for gone, attempts in reported:
        for attempt in attempts:
            if attempt.number == number:
                if gone is not None and attempt is attempts[-1]:
                    attempt = replace(attempt, results=tuple(map(gone.with_its_rank, attempt.results)))
                parts.append(attempt)
    return parts


def _restarts(reported: NodeReports, numbers: Sequence[int]) -> list[str]:
    """A note for each reason to restart; the same reason many times in a row is reported once."""
    whys = []
    for number, following in itertools.pairwise(numbers):
        before, after = _of(reported, number)[0], _of(reported, following)[0]
        change = ""
        if after.world_size != before.world_size:
            change = f", with {count(after.nnodes, 'node')} and {count(after.world_size, 'rank')}"
        whys.append(why_restarted(reported, number, following) + change)
    times = {1: "once", 2: "twice"}
    groups = ((why, sum(1 for _ in group)) for why, group in itertools.groupby(whys))
    return [f"restarted {times.get(often, f'{often} times')} {why}" for why, often in groups]


def _has_joined(reported: NodeReports, number: int, following: int) -> bool:
    """Whether there are more nodes, and no agent has used up one of its restarts, as it would for a failed rank."""
    for _, attempts in reported:
        restarts = {attempt.number: attempt.restarts for attempt in attempts}
        if restarts.get(following, 0) > restarts.get(number, math.inf):
            return False
    return _of(reported, following)[0].nnodes > _of(reported, number)[0].nnodes


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'s' * (number != 1)}"
