"""Right: the same ring in the opposite direction."""

import torch
import torch.distributed as dist

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def ring_reduce_scatter(tensor, group=None, *, op=SUM):
    rank, size, left, right = place(group)
    shards = split("tensor", tensor, size)
    combine = combining(op)
    buffer = torch.empty_like(shards[0])
    for step in range(size - 1):
        mine = shards[(rank + step + 2) % size]
        exchange(shards[(rank + step + 1) % size], buffer[: mine.numel()], left, right, group)
        combine(mine, buffer[: mine.numel()], out=mine)
    return shards[rank].div_(size) if op == AVG else shards[rank]


def ring_all_gather(shard, group=None, *, out=None):
    rank, size, left, right = place(group)
    if out is None:
        out = shard.new_empty(size * shard.numel())
    shards = split("out", out, size)
    if shards[rank].numel() != shard.numel():
        raise ValueError(f"out must have room for {shard.numel()} elements, got {shards[rank].numel()}")
    shards[rank].copy_(shard)
    for step in range(size - 1):
        exchange(shards[(rank + step) % size], shards[(rank + step + 1) % size], left, right, group)
    return out


def ring_all_reduce(tensor, op=SUM, group=None):
    shard = ring_reduce_scatter(tensor, group, op=op)
    ring_all_gather(shard, group, out=tensor)
    return tensor


def place(group):
    ranks = dist.get_process_group_ranks(group)
    rank, size = dist.get_rank(group), len(ranks)
    return rank, size, ranks[(rank - 1) % size], ranks[(rank + 1) % size]


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


def exchange(outgoing, incoming, left, right, group):
    messages = [(dist.isend, outgoing, left), (dist.irecv, incoming, right)]
    batch = [dist.P2POp(post, tensor, peer, group) for post, tensor, peer in messages if tensor.numel()]
    for work in dist.batch_isend_irecv(batch) if batch else []:
        work.wait()
