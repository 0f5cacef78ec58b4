"""Plumbing of the exercise `hierarchical_allreduce`: the ranks of each node, and collectives inside a node.

nodes_of([[0, 2], [1, 3]], 4)                       # each node's ranks, from any form of `RanksPerNode`
remember(intra_node_group, owners, 4)               # for node_of: who owns a shard, how many ranks there are
node = node_of(intra_node_group, inter_node_group)
for shards in cut(tensor, 4, len(node.owners)): ... # chunks of shards: views into the tensor
start_reduce_scatter(shards, node, op), start_all_gather(shards, node)
cards_of(topology)                                  # each node's ranks by network card
"""

from labkit.course.phase3_multi_node.hierarchical_allreduce.given.cards import Placement, cards_of
from labkit.course.phase3_multi_node.hierarchical_allreduce.given.nodes import RanksPerNode, node_of, nodes_of, remember
from labkit.course.phase3_multi_node.hierarchical_allreduce.given.shards import (
    cut,
    start_all_gather,
    start_reduce_scatter,
    sum_for_average,
)

__all__ = [
    "Placement",
    "RanksPerNode",
    "cards_of",
    "cut",
    "node_of",
    "nodes_of",
    "remember",
    "start_all_gather",
    "start_reduce_scatter",
    "sum_for_average",
]
