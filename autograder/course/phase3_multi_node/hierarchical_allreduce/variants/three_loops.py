"""Right: three loops instead of slots, each starting one step of all chunks; step 1 runs ahead."""

import torch.distributed as dist

from labkit.course.phase3_multi_node.hierarchical_allreduce.given import (
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
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def build_node_groups(ranks_per_node):
    nodes = nodes_of(ranks_per_node, dist.get_world_size())
    shards = min(map(len, nodes))
    owners = [[node[k * len(node) // shards] for k in range(shards)] for node in nodes]
    rank, made = dist.get_rank(), {}
    # the groups between the nodes first: any order will do, if it is the same on all ranks
    for kind, lists in (("inter", zip(*owners, strict=True)), ("intra", nodes)):
        for ranks in lists:
            group = dist.new_group(list(ranks))
            if rank in ranks:
                made[kind] = group
    for node, own in zip(nodes, owners, strict=True):
        if rank in node:
            remember(made["intra"], own, sum(map(len, nodes)))
    return made.get("intra"), made.get("inter")


def hierarchical_all_reduce(tensor, intra_node_group, inter_node_group, *, op=SUM, chunks=4):
    node = node_of(intra_node_group, inter_node_group)
    pieces = cut(tensor, chunks, len(node.owners))
    wire_op = sum_for_average(op, tensor)
    reduced = [start_reduce_scatter(shards, node, wire_op) for shards in pieces]
    crossing = []
    for shards, work in zip(pieces, reduced, strict=True):
        work.wait()
        if node.shard is not None:
            crossing.append(dist.all_reduce(shards[node.shard], wire_op, inter_node_group, async_op=True))
    shared = []
    for index, shards in enumerate(pieces):
        if node.shard is not None:
            crossing[index].wait()
            if op == AVG:
                shards[node.shard].div_(node.world_size)
        shared.append(start_all_gather(shards, node))
    for work in shared:
        work.wait()
    return tensor


def plan_ring(topology):
    cards = cards_of(topology)
    rings = []
    for r in range(max(len(node) for node in cards)):
        ring = []
        for node in cards:
            for step in range(len(node)):
                # each card's ranks in falling order: any order within a card is right
                ring += reversed(node[(r + step) % len(node)])
        rings.append(ring)
    return rings
