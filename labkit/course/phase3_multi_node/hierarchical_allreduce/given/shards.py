"""Chunks and shards of a tensor, and collectives inside a node that put each shard on its owner and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from labkit.course.arguments import integer, require
from labkit.course.collective_arguments import combining, contiguous
from labkit.course.phase3_multi_node.hierarchical_allreduce.given.nodes import Node
from labkit.torch_versions.collectives import all_gather_single, reduce_scatter_single


class Started:
    """Collectives under way; `wait()` returns when all have ended."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def sum_for_average(op: Any, tensor: Tensor) -> Any:
    """Return the operation for the collectives: SUM for AVG, whose sum is divided at the end, else `op` itself.

    Raises `ValueError` unless `op` is SUM, AVG, MAX, MIN or PRODUCT and is defined for the tensor's dtype.
    """
    combining(op, tensor.dtype)
    return ReduceOp.SUM if op == ReduceOp.AVG else op


def cut(tensor: Tensor, chunks: int, owners: int) -> list[list[Tensor]]:
    """Return at most `chunks` chunks of `owners` shards each: flat views into `tensor`, in order.

    The shards of a chunk are equal, except in the last one, where some may be shorter, or empty. Raises `ValueError`
    unless `tensor` is a contiguous tensor and `chunks` a whole number from 1 up.
    """
    flat = contiguous("tensor", tensor).view(-1)
    require("chunks", chunks, integer(at_least=1))
    shard = max(1, -(-flat.numel() // (chunks * owners)))
    return [
        [chunk[index * shard : (index + 1) * shard] for index in range(owners)]
        for chunk in flat.split(shard * owners)
        if chunk.numel()
    ]


def start_reduce_scatter(shards: list[Tensor], node: Node, op: Any) -> Started:
    """Start to reduce one chunk over the node's ranks: shard k ends on owner k, in place. One reduce-scatter.

    What the other shards hold afterwards is undefined.
    """
    if dist.get_world_size(node.group) == 1:
        return Started([])
    own = shards[node.shard] if node.shard is not None else shards[0][:0]
    if _is_even(shards, node):
        return Started([reduce_scatter_single(own, _whole(shards), op, node.group, async_op=True)])
    parts = dict(zip(node.owners, shards, strict=True))
    # ranks without a shard receive an empty tensor
    listed = [parts.get(rank, shards[0][:0]) for rank in dist.get_process_group_ranks(node.group)]
    return Started([dist.reduce_scatter(own, listed, op, node.group, async_op=True)])


def start_all_gather(shards: list[Tensor], node: Node) -> Started:
    """Start to give every rank of the node all shards of one chunk, in place: each comes from its owner.

    One all-gather; with shards that differ, or ranks that own none, a broadcast of each, since gloo gathers equal
    parts only.
    """
    if dist.get_world_size(node.group) == 1:
        return Started([])
    if _is_even(shards, node):
        assert node.shard is not None
        return Started([all_gather_single(_whole(shards), shards[node.shard], node.group, async_op=True)])
    pairs = zip(node.owners, shards, strict=True)
    return Started([dist.broadcast(part, rank, node.group, async_op=True) for rank, part in pairs if part.numel()])


def _is_even(shards: list[Tensor], node: Node) -> bool:
    """Return whether each rank of the node owns one shard, in the order of the ranks, and all have one size."""
    ranks = dist.get_process_group_ranks(node.group)
    return ranks == list(node.owners) and len({shard.numel() for shard in shards}) == 1


def _whole(shards: list[Tensor]) -> Tensor:
    """Return the whole chunk as a view: its shards lie one after the other in memory."""
    first = shards[0]
    return first.as_strided((sum(shard.numel() for shard in shards),), (1,), first.storage_offset())
