"""The library's own collectives under these names: right values, no work."""

import torch
import torch.distributed as dist

__all__ = ["all_gather", "all_reduce_naive", "all_reduce_recursive_doubling", "all_reduce_tree", "broadcast", "reduce"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def broadcast(tensor, src, group=None):
    checked(tensor), row(group, "src", src)
    dist.broadcast(tensor, src, group)
    return tensor


def reduce(tensor, dst, op=SUM, group=None):
    checked(tensor), combining(op), row(group, "dst", dst)
    dist.reduce(tensor, dst, op, group)
    return tensor


def all_gather(tensor, group=None):
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, tensor, group)
    return torch.stack(rows)


def all_reduce_naive(tensor, op=SUM, group=None):
    checked(tensor), combining(op)
    dist.all_reduce(tensor, op, group)
    return tensor


def all_reduce_tree(tensor, op=SUM, group=None):
    return all_reduce_naive(tensor, op, group)


def all_reduce_recursive_doubling(tensor, op=SUM, group=None):
    return all_reduce_naive(tensor, op, group)


def row(group, name="", first=None):
    ranks, rank = dist.get_process_group_ranks(group), dist.get_rank()
    if first is not None:
        if first not in ranks:
            raise ValueError(f"{name} must be one of {ranks}, got {first!r}")
        ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
    return ranks.index(rank), ranks


def checked(tensor):
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise ValueError(f"tensor must be a contiguous tensor, got {tensor!r}"[:200])
    return tensor.detach()


def combining(op):
    ops = dist.ReduceOp
    known = {SUM: torch.add, AVG: torch.add, ops.MAX: torch.maximum, ops.MIN: torch.minimum, ops.PRODUCT: torch.mul}
    if op not in known:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, got {op}")
    return known[op]
