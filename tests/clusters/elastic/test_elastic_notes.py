"""Why ranks were restarted, from the nodes' reports: cases that no run shows each time."""

from __future__ import annotations

import pytest

from labkit.clusters.elastic.attempts import Attempt
from labkit.clusters.elastic.outcome import merged
from labkit.clusters.rank_result import RankError, RankResult

BROKEN = RankError("RuntimeError", "Connection closed by peer", (("Cell In[3]", 14, "<module>", "dist.all_reduce(x)"),))


def attempt(number: int, restarts: int, nnodes: int, rank: int, error: RankError | None = None) -> Attempt:
    exit = None if number == 1 and error is None else int(error is not None)
    return Attempt(number, restarts, nnodes, nnodes, (RankResult(rank, exit=exit, error=error),), ())


@pytest.mark.parametrize(
    ("restarts", "nnodes", "why"),
    [
        (0, 3, "because a node joined, with 3 nodes and 3 ranks"),
        (1, 3, "after rank 1 failed: RuntimeError at Cell In[3], line 14, with 3 nodes and 3 ranks"),
        (1, 2, "after rank 1 failed: RuntimeError at Cell In[3], line 14"),
    ],
)
def test_a_rank_that_fails_as_another_stops_for_a_node_that_joins_is_no_reason(
    restarts: int, nnodes: int, why: str
) -> None:
    nodes = [
        [attempt(1, 0, 2, 0), attempt(2, 0, nnodes, 0)],
        [attempt(1, 0, 2, 1, BROKEN), attempt(2, restarts, nnodes, 1)],
        [attempt(2, 0, nnodes, 2)],
    ][:nnodes]
    assert merged([(None, node) for node in nodes], {}, (), 1.0, "", ()).notes == (f"restarted once {why}",)
