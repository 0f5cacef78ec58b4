"""All-reduce in two levels, for nodes whose GPUs share a fast link and whose network is slow (Mikami et al. 2018).

1. Inside each node: reduce-scatter. Each rank owns one shard of the node's sum.
2. Between the nodes: each shard's owners, one on every node, all-reduce it. All network cards work at once.
3. Inside each node: all-gather. Each rank has all shards.

Of n bytes, 2(M-1)/M n leave each of M nodes, however many ranks it has, and no path has a hop for each rank of the
world. Cut into chunks, the tensor is in all three steps at once: the network carries one chunk, NVLink another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from labkit.course.phase3_multi_node.hierarchical_allreduce.given import (
    Placement,
    RanksPerNode,
    cards_of,
    cut,
    node_of,
    nodes_of,
    remember,
    start_all_gather,
    start_reduce_scatter,
    sum_for_average,
)

__all__ = ["build_node_groups", "hierarchical_all_reduce", "plan_ring"]


def build_node_groups(ranks_per_node: RanksPerNode) -> tuple[ProcessGroup | None, ProcessGroup | None]:
    """Create the groups of a hierarchical all-reduce; return this rank's (intra_node_group, inter_node_group).

    ranks_per_node: 8 for consecutive ranks, so many on each node; [8, 4] for nodes of these sizes; or each node's ranks
    in any placement, [[0, 2, 4], [1, 3, 5]]. Ranks in none of the lists get (None, None).
    With K ranks on the smallest node there are K inter-node groups: number k has the rank k * R // K of every node,
    where R is the node's number of ranks, so owners of shards are spread over a node's network cards. On equal nodes
    it has the k-th rank of each. Ranks that are left over get None as their inter-node group: they own no shard.
    Every rank of the world calls this, with the same argument. Raises ValueError, before any group, when it is bad.
    """
    nodes = nodes_of(ranks_per_node, dist.get_world_size())
    # TODO 1. `owners[m]` are the ranks of node m that own shard 0, 1, ...: as many as the smallest node has ranks. Take
    # them evenly from the node's ranks, not the first ones: neighbours may share a network card. `_join` below creates
    # groups and returns this rank's.
    # YOUR CODE HERE
    raise NotImplementedError()
    for node, own in zip(nodes, owners, strict=True):
        if dist.get_rank() in node:
            remember(intra_node_group, own, sum(map(len, nodes)))
    return intra_node_group, inter_node_group


def _join(groups: Sequence[Sequence[int]]) -> ProcessGroup | None:
    """Create a process group for each list of ranks, and return the one with this rank; None if it is in no list."""
    mine = None
    # TODO 2. `dist.new_group(ranks)` is a call of the whole world: each rank makes every call, in the same order, also
    # those for groups that it is not in.
    # YOUR CODE HERE
    raise NotImplementedError()
    return mine


def hierarchical_all_reduce(
    tensor: Tensor,
    intra_node_group: ProcessGroup | None,
    inter_node_group: ProcessGroup | None,
    *,
    op: Any = ReduceOp.SUM,
    chunks: int = 4,
) -> Tensor:
    """Reduce `tensor` over the ranks of all nodes, in place on every rank, and return that same tensor.

    tensor: any shape, the same on every rank, contiguous. The groups are those of `build_node_groups`; others, if all
    nodes have equally many ranks and the k-th rank of every node is in the same inter-node group. op: SUM, AVG, MAX,
    MIN or PRODUCT. chunks: number of parts that follow each other through the three steps, so that the network and the
    links inside the nodes work at the same time.
    2(M-1)/M of the tensor's bytes leave each of M nodes, an equal part of them from each owner of a shard. No
    collective has ranks of several nodes and several ranks of one. Every rank ends with the same bits.
    Raises ValueError, before any communication, when an argument cannot be used.
    """
    node = node_of(intra_node_group, inter_node_group)
    pieces = cut(tensor, chunks, len(node.owners))  # pieces[c][k]: shard k of chunk c, a view into the tensor
    wire_op = sum_for_average(op, tensor)

    # TODO 3. A conveyor belt of three steps. In slot s, `start_reduce_scatter(shards, node, wire_op)` starts step 1 of
    # chunk s. Step 1 of chunk s - 1 is waited for with `wait()`; step 2 starts: `dist.all_reduce(..., async_op=True)`
    # of the shard that this rank owns, number `node.shard`. Step 2 of chunk s - 2 is waited for; step 3 starts:
    # `start_all_gather(shards, node)`. A rank whose `node.shard` is None has no step 2. For AVG divide the sum by
    # `node.world_size` before it is shared. How many slots are there? Return when everything has ended.
    # YOUR CODE HERE
    raise NotImplementedError()
    return tensor


def plan_ring(topology: Placement | Sequence[tuple[int, int]]) -> list[list[int]]:
    """Plan rings over all ranks that cross as few node borders as possible and use all network cards.

    topology: each rank's (node, card), so a round-robin placement on two nodes with one card each is [(0, 0), (1, 0),
    (0, 0), (1, 0)]; or a cluster with `nic_of`, such as `labkit.hardware.Topology`.
    Returns rings, each a list of all ranks in which every one sends to the next and the last to the first. There are as
    many as the node with the most cards has; each is to carry an equal part of a tensor. A ring enters and leaves each
    node once. Ring r enters a node with C cards through card r mod C, in the order of their numbers, and leaves it
    through another one if C > 1, so that all rings together enter and leave through each of a node's cards.
    """
    cards = cards_of(topology)  # cards[node][card]: the ranks on it
    # TODO 4. Visit node after node. Where in a node does ring r begin, so that it ends on another card?
    # YOUR CODE HERE
    raise NotImplementedError()
    return rings
