"""One `Run` out of what all nodes reported of all attempts: the last one's results, and why there was more than one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit.clusters.elastic.attempts import Attempt, Gone
from labkit.clusters.run import RankResult, Run, ending
from labkit.clusters.warm.collector import KeptOutput
from labkit.trace import Trace

_JOINED = "because a node joined"
Reported = Sequence[tuple[Gone | None, Sequence[Attempt]]]
"""Of each node: whether it is gone, and its attempts."""


def merged(
    reported: Reported,
    output: Mapping[int, KeptOutput],
    notes: Sequence[str],
    wall_seconds: float,
    stopped: str,
    last_words: Sequence[str],
) -> Run:
    """notes: what ranks and agents noted. last_words: of agents that failed by themselves."""
    numbers = sorted({attempt.number for _, attempts in reported for attempt in attempts})
    if not numbers:
        said = "; ".join(words.strip().splitlines()[-1] for words in last_words if words.strip())
        return Run((), Trace(0), wall_seconds, stopped or f"no rank was started: {said or 'no agent said why'}", ())
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


def why_restarted(reported: Reported, number: int, following: int | None = None) -> str:
    """Why the attempt of this number was not the last: `after rank 2 failed: ValueError at Cell In[3], line 5`.

    following: the number of the next one, when that is known.
    """
    gone = [gone for gone, attempts in reported if gone and attempts and attempts[-1].number == number]
    if gone:
        return "after " + ", ".join(f"{one.node} {one.how}" for one in gone)
    parts = _of(reported, number)
    # agents notice a node that joins one after the other: ranks of those that stop first fail the others'
    if following is not None and _has_joined(reported, number, following):
        return _JOINED
    first = Run([result for part in parts for result in part.results]).first_failure
    if first is None or (first.exit is None and first.error is None):
        return _JOINED
    if first.error is None or first.error.is_mere_end:
        return f"after rank {first.rank} {ending(first.exit)}"
    at = f" at {first.error.where}" if first.error.where else ""
    return f"after rank {first.rank} failed: {first.error.type}{at}"


def _of(reported: Reported, number: int) -> list[Attempt]:
    """The attempt of this number as each node knows it; of a node that is gone now, its ranks are too."""
    parts = []
    for gone, attempts in reported:
        for attempt in attempts:
            if attempt.number == number:
                if gone is not None and attempt is attempts[-1]:
                    attempt = replace(attempt, results=tuple(map(gone.with_its_rank, attempt.results)))
                parts.append(attempt)
    return parts


def _restarts(reported: Reported, numbers: Sequence[int]) -> list[str]:
    """A note for each reason to start again; the same reason many times in a row is told once."""
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


def _has_joined(reported: Reported, number: int, following: int) -> bool:
    """Are there more nodes, and has no agent used up one of its restarts, as a rank that fails would have it do?"""
    for _, attempts in reported:
        restarts = {attempt.number: attempt.restarts for attempt in attempts}
        if restarts.get(following, 0) > restarts.get(number, math.inf):
            return False
    return _of(reported, following)[0].nnodes > _of(reported, number)[0].nnodes


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'s' * (number != 1)}"
