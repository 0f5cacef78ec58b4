"""The library does the work: right values, no ring."""

import torch
import torch.distributed as dist

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def ring_reduce_scatter(tensor, group=None, *, op=SUM):
    ring_all_reduce(tensor, op, group)
    return split("tensor", tensor, dist.get_world_size(group))[dist.get_rank(group)]


def ring_all_gather(shard, group=None, *, out=None):
    size = dist.get_world_size(group)
    if out is None:
        out = shard.new_empty(size * shard.numel())
    shards = split("out", out, size)
    if shards[dist.get_rank(group)].numel() != shard.numel():
        raise ValueError(f"out must have room for {shard.numel()} elements")
    out.zero_()
    shards[dist.get_rank(group)].copy_(shard)
    dist.all_reduce(out, group=group)
    return out


def ring_all_reduce(tensor, op=SUM, group=None):
    split("tensor", tensor, 1)
    combining(op)
    dist.all_reduce(tensor, SUM if op == AVG else op, group=group)
    return tensor.div_(dist.get_world_size(group)) if op == AVG else tensor


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
