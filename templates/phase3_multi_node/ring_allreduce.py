"""Ring all-reduce out of point-to-point messages (Patarasuk & Yuan 2009).

N ranks stand in a ring: each sends to its right neighbour and receives from its left. A tensor is N shards of
ceil(numel / N) elements, in order; the last are shorter, or empty. First every shard travels once around the ring and
collects each rank's part (reduce-scatter), then it travels around once more, complete (all-gather). Either way a rank
sends N-1 of the N shards, so a whole all-reduce costs it 2(N-1)/N of the tensor's bytes, however many ranks there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from labkit.course.collective_arguments import combining, contiguous, group_ranks

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]


class _Ring(NamedTuple):
    """This rank's place in the ring. `rank` and `size` count within the group; `left` and `right` are global ranks."""

    rank: int
    size: int
    left: int
    right: int
    group: ProcessGroup | None


def _exchange(outgoing: Tensor, incoming: Tensor, ring: _Ring) -> None:
    """Send `outgoing` to the right and receive `incoming` from the left; return after both. Skips empty tensors."""
    # TODO 1. Post both at once, and then wait for both: if each rank's send had to end first, all would wait for each
    # other, around the ring. `dist.batch_isend_irecv` posts a list, which must not be empty, of `dist.P2POp(dist.isend,
    # tensor, peer, group)` and `dist.P2POp(dist.irecv, ...)`. It returns a list of works: call `wait()` on each.
    # YOUR CODE HERE
    raise NotImplementedError()


def ring_reduce_scatter(tensor: Tensor, group: ProcessGroup | None = None, *, op: Any = ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the group and keep one shard of the result.

    tensor: any shape, the same on every rank, contiguous; overwritten. op: SUM, AVG, MAX, MIN or PRODUCT.
    Returns shard `rank` of the result, a flat view into `tensor`; what the other shards hold afterwards is undefined.
    N-1 rounds; in each a rank sends one shard to its right neighbour.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    ring = _ring(group)
    shards = _shards("tensor", tensor, ring.size)
    combine = combining(op, tensor.dtype)
    buffer = torch.empty_like(shards[0])  # shard 0 is never shorter than another one

    # TODO 2. In each round: send one shard (`_exchange`), receive another into the front of `buffer`, and combine it
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

    # TODO 3. Your own shard goes to its place. Then, in each round, pass on the shard that came last and receive the
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
    # TODO 4. Both functions above work inside the tensor that they are given: nothing needs to be copied here.
    # YOUR CODE HERE
    raise NotImplementedError()
    return tensor


def _ring(group: ProcessGroup | None) -> _Ring:
    """Return this rank's place in the ring of the group's ranks."""
    ranks = group_ranks(group)
    rank, size = dist.get_rank(group), len(ranks)
    return _Ring(rank, size, ranks[(rank - 1) % size], ranks[(rank + 1) % size], group)


def _shards(name: str, tensor: Tensor, count: int) -> list[Tensor]:
    """Return `count` flat views into `tensor`: ceil(numel / count) elements each, the last fewer or none."""
    flat = contiguous(name, tensor).view(-1)
    length = -(-flat.numel() // count)
    return [flat[index * length : (index + 1) * length] for index in range(count)]
