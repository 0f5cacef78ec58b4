"""Nodes: the ranks on each of them, and what a rank knows of its own. All checks raise `ValueError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup

from labkit.course.arguments import Rule, require

RanksPerNode = int | Sequence[int] | Sequence[Sequence[int]]
"""8: that many consecutive ranks on each node. [8, 4]: so many on each. [[0, 2], [1, 3]]: these ranks on each."""


@dataclass(frozen=True)
class Node:
    """A node from the point of view of one of its ranks."""

    group: ProcessGroup
    """Group of all ranks of the node."""
    owners: tuple[int, ...]
    """Global ranks that own shard 0, 1, ... of every chunk."""
    shard: int | None
    """Number of the shard that this rank owns; None: it owns no shard, since another node has fewer ranks."""
    world_size: int
    """Number of ranks on all nodes."""


_NODES: WeakKeyDictionary[ProcessGroup, Node] = WeakKeyDictionary()


def remember(intra_node_group: ProcessGroup | None, owners: Sequence[int], world_size: int) -> None:
    """Note for `node_of` which ranks of a node own a shard, and how many ranks all nodes have."""
    if intra_node_group is not None:
        rank = dist.get_rank()
        shard = owners.index(rank) if rank in owners else None
        _NODES[intra_node_group] = Node(intra_node_group, tuple(owners), shard, world_size)


def node_of(intra_node_group: ProcessGroup | None, inter_node_group: ProcessGroup | None) -> Node:
    """Return this rank's node.

    Nodes that `remember` has not noted are assumed equal: each of their ranks owns a shard, and the k-th ranks of all
    nodes are in one inter-node group. Raises `ValueError` unless this rank is
    in `intra_node_group` and, if it owns a shard, in `inter_node_group`.
    """
    _require_member("intra_node_group", intra_node_group)
    assert intra_node_group is not None
    node = _NODES.get(intra_node_group)
    if node is None:
        ranks = dist.get_process_group_ranks(intra_node_group)
        across = dist.get_world_size(inter_node_group) if inter_node_group is not None else 1
        node = Node(intra_node_group, tuple(ranks), ranks.index(dist.get_rank()), across * len(ranks))
    if node.shard is not None:
        _require_member("inter_node_group", inter_node_group)
    elif inter_node_group is not None:
        raise ValueError(f"inter_node_group must be None on rank {dist.get_rank()}, which owns no shard")
    return node


def _require_member(name: str, group: Any) -> None:
    rule = f"be a process group that contains this rank, {dist.get_rank()}"
    require(name, group, Rule(rule, lambda value: isinstance(value, ProcessGroup) and dist.get_rank(value) >= 0))


def nodes_of(ranks_per_node: RanksPerNode, world_size: int) -> list[list[int]]:
    """Return each node's ranks in ascending order, from any form of `RanksPerNode`.

    Raises `ValueError` unless every node has ranks, no rank is on two of them, and sizes add up to `world_size`.
    """
    given: Any = ranks_per_node
    if _is_int(given):
        if given < 1 or world_size % given:
            raise ValueError(f"ranks_per_node must divide the world size, {world_size}, got {given!r}")
        given = [given] * (world_size // given)
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ValueError(f"ranks_per_node must be a number, or a list of sizes or of lists of ranks, got {given!r}")
    if all(_is_int(size) for size in given):
        if min(given) < 1 or sum(given) != world_size:
            raise ValueError(f"ranks_per_node must be sizes that add up to {world_size}, got {list(given)}")
        return [list(range(sum(given[:i]), sum(given[: i + 1]))) for i in range(len(given))]
    # a number among lists counts as an empty node, which is refused below
    listed = [list(ranks) if isinstance(ranks, Sequence) else [] for ranks in given]
    every = [rank for ranks in listed for rank in ranks]
    fits = all(_is_int(rank) and 0 <= rank < world_size for rank in every)
    if not fits or not all(listed) or len(set(every)) < len(every):
        raise ValueError(
            f"ranks_per_node must list ranks from 0 to {world_size - 1}, each on one node, got {given}"[:300]
        )
    return [sorted(ranks) for ranks in listed]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
