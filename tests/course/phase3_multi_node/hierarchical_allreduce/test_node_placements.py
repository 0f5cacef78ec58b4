"""Nodes' ranks from any form of the argument, ranks by card, and chunks of shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.course.phase3_multi_node.hierarchical_allreduce.given import cards_of, cut, nodes_of


def test_nodes_are_given_by_a_number_by_sizes_or_by_ranks() -> None:
    assert nodes_of(2, 4) == nodes_of([2, 2], 4) == nodes_of([[1, 0], [2, 3]], 4) == [[0, 1], [2, 3]]
    assert nodes_of([3, 1], 4) == [[0, 1, 2], [3]]
    assert nodes_of([[0, 2], (3,)], 5) == [[0, 2], [3]]


@pytest.mark.parametrize(
    "bad", [0, 3, -1, True, [], [2, 1], [5, -1], [[0, 1], [1, 2]], [[0], []], [[0], [4]], [2, [1]], "22", None, 2.0]
)
def test_bad_nodes_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="ranks_per_node must"):
        nodes_of(bad, 4)


def test_cards_list_their_ranks() -> None:
    assert cards_of([(1, 5), (0, 2), (1, 3), (1, 5)]) == [[[1]], [[2], [0, 3]]]
    for bad in ([], [0, 1], [(0, 1, 2)], None):
        with pytest.raises(ValueError, match="topology must"):
            cards_of(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("numel", [0, 1, 5, 12, 13, 100])
@pytest.mark.parametrize("chunks", [1, 3, 4])
def test_chunks_cover_the_tensor_in_order(numel: int, chunks: int) -> None:
    tensor = torch.arange(float(numel))
    pieces = cut(tensor, chunks, 3)
    assert len(pieces) <= chunks and all(len(shards) == 3 for shards in pieces)
    assert torch.cat([tensor[:0], *(shard for shards in pieces for shard in shards)]).equal(tensor)
    assert all(len({len(shard) for shard in shards}) == 1 for shards in pieces[:-1])
