"""Rank 0 receives all tensors, reduces them, and sends the result to everybody: right values, no ring."""

import torch
import torch.distributed as dist

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def ring_reduce_scatter(tensor, group=None, *, op=SUM):
    ring_all_reduce(tensor, op, group)
    return split("tensor", tensor, dist.get_world_size(group))[dist.get_rank(group)]


def ring_all_gather(shard, group=None, *, out=None):
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if out is None:
        out = shard.new_empty(size * shard.numel())
    shards = split("out", out, size)
    if shards[rank].numel() != shard.numel():
        raise ValueError(f"out must have room for {shard.numel()} elements, got {shards[rank].numel()}")
    out.zero_()
    shards[rank].copy_(shard)
    return ring_all_reduce(out, group=group)


def ring_all_reduce(tensor, op=SUM, group=None):
    split("tensor", tensor, 1)
    combine = combining(op)
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank(group) > 0:
        dist.send(tensor, ranks[0], group)
        dist.recv(tensor, ranks[0], group)
        return tensor
    other = torch.empty_like(tensor)
    for peer in ranks[1:]:
        dist.recv(other, peer, group)
        combine(tensor, other, out=tensor)
    if op == AVG:
        tensor.div_(len(ranks))
    for peer in ranks[1:]:
        dist.send(tensor, peer, group)
    return tensor


def split(name, tensor, count):
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise ValueError(f"{name} must be a contiguous tensor, got {tensor!r}"[:200])
    length = -(-tensor.numel() // count)
    return [tensor.view(-1)[i * length : (i + 1) * length] for i in range(count)]


def combining(op):
    ops = dist.ReduceOp
    known = {SUM: torch.add, AVG: torch.add, ops.MAX: torch.maximum, ops.MIN: torch.minimum, ops.PRODUCT: torch.mul}
    if op not in known:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, got {op}")
    return known[op]
