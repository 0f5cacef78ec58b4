"""Right: lists of shards and an all-to-all, whatever the nodes' sizes; no part of labkit, three loops."""

import torch
import torch.distributed as dist

__all__ = ["build_node_groups", "hierarchical_all_reduce", "plan_ring"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
OPS = {SUM, AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT}
OWNERS = {}


def listed(ranks_per_node, world_size):
    whole = ranks_per_node
    if isinstance(whole, int):
        if whole < 1 or world_size % whole:
            raise ValueError(f"ranks_per_node must divide {world_size}, got {whole}")
        whole = [whole] * (world_size // whole)
    if all(isinstance(size, int) for size in whole):
        if sum(whole) != world_size or min(whole) < 1:
            raise ValueError(f"ranks_per_node must add up to {world_size}, got {whole}")
        ranks = iter(range(world_size))
        return [[next(ranks) for _ in range(size)] for size in whole]
    every = [rank for node in whole for rank in node]
    if len(set(every)) < len(every) or not set(every) <= set(range(world_size)):
        raise ValueError(f"ranks_per_node must have each rank once, got {whole}")
    return [sorted(node) for node in whole]


def build_node_groups(ranks_per_node):
    nodes = listed(ranks_per_node, dist.get_world_size())
    shards = min(map(len, nodes))
    owners = [[node[k * len(node) // shards] for k in range(shards)] for node in nodes]
    intra = inter = None
    for node, own in zip(nodes, owners, strict=True):
        group = dist.new_group(node)
        if dist.get_rank() in node:
            intra = group
            OWNERS[id(group)] = group, own, sum(map(len, nodes))
    for ranks in zip(*owners, strict=True):
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            inter = group
    return intra, inter


def hierarchical_all_reduce(tensor, intra_node_group, inter_node_group, *, op=SUM, chunks=4):
    group, owners, world_size = OWNERS[id(intra_node_group)]
    rank = dist.get_rank()
    if rank in owners and inter_node_group is None:
        raise ValueError("inter_node_group must be a group on ranks that own a shard")
    if not isinstance(chunks, int) or chunks < 1:
        raise ValueError(f"chunks must be 1 or more, got {chunks}")
    if op not in OPS:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, got {op}")
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise ValueError(f"tensor must be contiguous, got {type(tensor)}")
    wire_op = SUM if op == AVG else op
    chunked = tensor.view(-1).tensor_split(chunks)
    pieces = [chunk.tensor_split(len(owners)) for chunk in chunked]
    reduced, crossing, shared = [], [], []
    members = dist.get_process_group_ranks(group)
    nothing = tensor.new_empty(0)
    for shards in pieces:
        parts = dict(zip(owners, shards, strict=True))
        listed = [parts.get(member, nothing) for member in members]
        mine = parts.get(rank, nothing)
        reduced.append(dist.reduce_scatter(mine, listed, wire_op, group, async_op=True))
    for shards, work in zip(pieces, reduced, strict=True):
        work.wait()
        if rank in owners:
            own = shards[owners.index(rank)]
            crossing.append(dist.all_reduce(own, wire_op, inter_node_group, async_op=True))
    for index, (chunk, shards) in enumerate(zip(chunked, pieces, strict=True)):
        own = nothing
        if rank in owners:
            crossing[index].wait()
            own = shards[owners.index(rank)]
            if op == AVG:
                own.div_(world_size)
        sizes = dict(zip(owners, map(len, shards), strict=True))
        lengths = [sizes.get(member, 0) for member in members]
        copies = own.repeat(len(members))
        shared.append(dist.all_to_all_single(chunk, copies, lengths, [len(own)] * len(members), group, async_op=True))
    for work in shared:
        work.wait()
    return tensor


def plan_ring(topology):
    places = [topology.nic_of(r) for r in range(topology.world_size)] if hasattr(topology, "nic_of") else topology
    cards = {}
    for node, card in places:
        cards.setdefault(node, set()).add(card)
    rings = []
    for r in range(max(map(len, cards.values()))):

        def turn(rank, first=r):
            node, card = places[rank]
            order = sorted(cards[node])
            return node, (order.index(card) - first) % len(order), rank

        rings.append(sorted(range(len(places)), key=turn))
    return rings
