"""Ring all-reduce out of point-to-point messages (Patarasuk & Yuan 2009).

N ranks stand in a ring: each sends to its right neighbour and receives from its left. A tensor is N shards of
ceil(numel / N) elements, in order; the last are shorter, or empty. First every shard travels once around the ring and
collects each rank's part (reduce-scatter), then it travels around once more, complete (all-gather). Either way a rank
sends N-1 of the N shards, so a whole all-reduce costs it 2(N-1)/N of the tensor's bytes, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]


def ring_reduce_scatter(tensor: Tensor, group: ProcessGroup | None = None, *, op: Any = ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the group and keep one shard of the result.

    tensor: any shape, the same on every rank, contiguous; overwritten. op: SUM, AVG, MAX, MIN or PRODUCT.
    Returns shard `rank` of the result, a flat view into `tensor`; what the other shards hold afterwards is undefined.
    N-1 rounds; in each a rank sends one shard to its right neighbour.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    ring = _ring(group)
    shards = _shards("tensor", tensor, ring.size)
    combine = _combining(op, tensor.dtype)
    buffer = torch.empty_like(shards[0])  # shard 0 is never shorter than another one

    # TODO 1. In each round: send one shard (`_exchange`), receive another into the front of `buffer`, and combine it
    # into your own: `combine(mine, received, out=mine)`. What you receive now is what you send in the next round.
    # Which shard first? Reason backwards: after the last round, shard `ring.rank` must be complete here.
    # YOUR CODE HERE
    raise NotImplementedError()

    shard = shards[ring.rank]
    return shard.div_(ring.size) if op == ReduceOp.AVG else shard


def ring_all_gather(shard: Tensor, group: ProcessGroup | None = None, *, out: Tensor | None = None) -> Tensor:
    """Put every rank's shard together, on every rank.

    shard: contiguous, taken as flat. out: contiguous, any shape, filled with the shards in the order of their ranks;
    `shard` may be the view of it that belongs there. Without `out` all shards have one size and a flat tensor is made.
    Returns `out`. N-1 rounds; in each a rank sends one shard to its right neighbour.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    ring = _ring(group)
    own = _shards("shard", shard, 1)[0]
    if out is None:
        out = own.new_empty(ring.size * own.numel())
    shards = _shards("out", out, ring.size)
    room = shards[ring.rank].numel()
    if (room, out.dtype) != (own.numel(), own.dtype):
        raise ValueError(f"out must take {own.numel()} x {own.dtype} from rank {ring.rank}, got {room} x {out.dtype}")

    # TODO 2. Your own shard goes to its place. Then, in each round, pass on the shard that came last and receive the
    # one before it, straight into its place in `shards`.
    # YOUR CODE HERE
    raise NotImplementedError()

    return out


def ring_all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor.

    tensor: any shape, the same on every rank, contiguous. op: SUM, AVG, MAX, MIN or PRODUCT.
    2(N-1) rounds, in which each rank sends 2(N-1)/N of the tensor's bytes to its right neighbour and to nobody else.
    Every rank ends with the same bits. Raises ValueError, before any message, when an argument cannot be used.
    """
    # TODO 3. Both functions above work inside the tensor that they are given: nothing needs to be copied here.
    # YOUR CODE HERE
    raise NotImplementedError()
    return tensor


class _Ring(NamedTuple):
    """Where this rank stands. `rank` and `size` count within the group; `left` and `right` are global ranks."""

    rank: int
    size: int
    left: int
    right: int
    group: ProcessGroup | None


def _ring(group: ProcessGroup | None) -> _Ring:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
    ranks = dist.get_process_group_ranks(group)
    return _Ring(rank, size, ranks[(rank - 1) % size], ranks[(rank + 1) % size], group)


def _shards(name: str, tensor: Tensor, count: int) -> list[Tensor]:
    """`count` flat views into `tensor`: ceil(numel / count) elements each, the last fewer or none."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or not tensor.is_contiguous():
        shown = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)[:80]
        raise ValueError(f"{name} must be a contiguous tensor, got {shown}")
    flat = tensor.detach().view(-1)
    length = -(-flat.numel() // count)
    return [flat[index * length : (index + 1) * length] for index in range(count)]


def _combining(op: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
    """The function that puts two tensors together as `op` says."""
    known: dict[Any, Callable[..., Tensor]] = {ReduceOp.SUM: torch.add, ReduceOp.PRODUCT: torch.mul}
    if dtype.is_floating_point or dtype.is_complex:
        known[ReduceOp.AVG] = torch.add
    if not dtype.is_complex:
        known |= {ReduceOp.MAX: torch.maximum, ReduceOp.MIN: torch.minimum}
    if op not in known:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, one that suits {dtype}; got {op}")
    return known[op]


def _exchange(outgoing: Tensor, incoming: Tensor, ring: _Ring) -> None:
    """Send to the right while receiving from the left; back when both are done. Empty tensors are not sent.

    Both are posted at once: if each rank's send had to end first, all would wait for each other, around the ring.
    """
    messages = [(dist.isend, outgoing, ring.right), (dist.irecv, incoming, ring.left)]
    batch = [dist.P2POp(post, tensor, peer, ring.group) for post, tensor, peer in messages if tensor.numel()]
    for work in dist.batch_isend_irecv(batch) if batch else []:
        work.wait()
