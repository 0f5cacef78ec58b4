"""A right ring in another order: 0, 2, 4, ..., then 1, 3, 5, ..."""

import torch
import torch.distributed as dist

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def ring_reduce_scatter(tensor, group=None, *, op=SUM):
    rank, size, left, right = place(group)
    shards = split("tensor", tensor, size)
    combine = combining(op)
    buffer = torch.empty_like(max(shards, key=len))
    for step in range(size - 1):
        mine = shards[(rank - step - 2) % size]
        exchange(shards[(rank - step - 1) % size], buffer[: mine.numel()], left, right, group)
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
        exchange(shards[(rank - step) % size], shards[(rank - step - 1) % size], left, right, group)
    return out


def ring_all_reduce(tensor, op=SUM, group=None):
    shard = ring_reduce_scatter(tensor, group, op=op)
    ring_all_gather(shard, group, out=tensor)
    return tensor


def order(size):
    return [*range(0, size, 2), *range(1, size, 2)]


def place(group):
    """This rank's seat in the crossed ring, and its neighbours there."""
    ranks = dist.get_process_group_ranks(group)
    size = len(ranks)
    seats = order(size)
    seat = seats.index(dist.get_rank(group))
    return seat, size, ranks[seats[(seat - 1) % size]], ranks[seats[(seat + 1) % size]]


def split(name, tensor, count):
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise ValueError(f"{name} must be a contiguous tensor, got {tensor!r}"[:200])
    length = -(-tensor.numel() // count)
    return [tensor.view(-1)[i * length : (i + 1) * length] for i in order(count)]


def combining(op):
    ops = dist.ReduceOp
    known = {SUM: torch.add, AVG: torch.add, ops.MAX: torch.maximum, ops.MIN: torch.minimum, ops.PRODUCT: torch.mul}
    if op not in known:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, got {op}")
    return known[op]


def exchange(outgoing, incoming, left, right, group):
    messages = [(dist.isend, outgoing, right), (dist.irecv, incoming, left)]
    batch = [dist.P2POp(post, tensor, peer, group) for post, tensor, peer in messages if tensor.numel()]
    for work in dist.batch_isend_irecv(batch) if batch else []:
        work.wait()
