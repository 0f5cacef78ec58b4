"""Collectives out of sends and receives: a server, binomial trees, Bruck's all-gather and recursive doubling.

With a latency of a seconds and b seconds for each byte, a message of n bytes takes a + bn. On N ranks, one GPU on each
machine, an all-reduce then takes (Thakur, Rabenseifner & Gropp 2005; Bruck et al. 1997 for the all-gather):

    naive                 2 (N-1) (a + bn)           one message after the other through one rank
    tree                  2 ceil(log2 N) (a + bn)    up a tree to one rank, and down again
    recursive doubling    log2 N (a + bn)            two rounds more than floor(log2 N) where N is no power of two
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

__all__ = ["all_gather", "all_reduce_naive", "all_reduce_recursive_doubling", "all_reduce_tree", "broadcast", "reduce"]


def all_reduce_naive(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor: through the first rank.

    tensor: any shape, the same on every rank, contiguous. op: SUM, AVG, MAX, MIN or PRODUCT.
    2(N-1) messages of the tensor's size, one after the other. Nothing is left out here: it shows the parts in use.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    row, data, combine = _row(group), _data(tensor), _combining(op, tensor)
    if row.place > 0:
        row.send(data, 0)
        row.receive(data, 0)
    else:
        part = torch.empty_like(data)
        for place in range(1, row.size):
            row.receive(part, place)
            combine(data, part, out=data)
        _averaged(data, op, row.size)
        for place in range(1, row.size):
            row.send(data, place)
    return tensor


def broadcast(tensor: Tensor, src: int, group: ProcessGroup | None = None) -> Tensor:
    """Give every rank what `tensor` holds on rank `src`, in place, and return that same tensor.

    tensor: any shape, the same on every rank, contiguous; overwritten but on `src`. src: a global rank of the group.
    N-1 messages of the tensor's size, in ceil(log2 N) rounds: a binomial tree. In a round a rank sends at most once.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    row, data = _row(group, "src", src), _data(tensor)

    # TODO 1. `src` has place 0 in the row. In every round, each place that has the data sends it `distance` places on,
    # if there is such a place, and `distance` is halved: the last round is between neighbours. Which distance is first?
    # In a round with `distance`, which places have the data already, and which receive it?
    # YOUR CODE HERE
    raise NotImplementedError()

    return tensor


def reduce(tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group on rank `dst`, in place, and return that same tensor.

    tensor: any shape, the same on every rank, contiguous; on other ranks than `dst` it is overwritten, and undefined.
    dst: a global rank of the group. op: SUM, AVG, MAX, MIN or PRODUCT.
    N-1 messages of the tensor's size, in ceil(log2 N) rounds: the tree of `broadcast`, from its leaves to its root.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    row, data, combine = _row(group, "dst", dst), _data(tensor), _combining(op, tensor)
    part = torch.empty_like(data)

    # TODO 2. A broadcast played backwards: the last round comes first, and who received then sends now. What arrives in
    # `part` is put together with what is there: `combine(data, part, out=data)`.
    # YOUR CODE HERE
    raise NotImplementedError()

    if row.place == 0:
        _averaged(data, op, row.size)
    return tensor


def all_reduce_tree(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor: up a tree, and down again.

    Arguments as for `all_reduce_naive`. 2(N-1) messages of the tensor's size, in 2 ceil(log2 N) rounds.
    """
    first = _row(group).ranks[0]
    reduce(tensor, first, op, group)
    return broadcast(tensor, first, group)


def all_gather(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Put every rank's tensor together, on every rank.

    tensor: any shape, the same on every rank, contiguous; left as it is. Returns (N, *shape): row r is the r-th rank's.
    Each rank sends N-1 times the tensor's bytes, in ceil(log2 N) messages and rounds (Bruck et al. 1997).
    Raises ValueError, before any message, when an argument cannot be used.
    """
    row, data = _row(group), _data(tensor)
    rows = data.new_empty((row.size, *data.shape))
    rows[0] = data

    # TODO 3. Let `rows[i]` be the tensor of the rank that stands i places after yours. While you hold `held` rows (1,
    # 2, 4, ...), the rank `held` places after you holds just those that come next. `row.exchange` them, but no more
    # than are missing: in the last round there may be fewer. Then turn the rows: the first rank's belongs into row 0.
    # YOUR CODE HERE
    raise NotImplementedError()

    return rows


def all_reduce_recursive_doubling(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor: all ranks work all the time.

    Arguments as for `all_reduce_naive`. log2 N rounds, in each of which a rank exchanges the whole tensor with another
    one. Where N is no power of two, ranks beyond the largest one hand their part over before, and get the result after:
    floor(log2 N) + 2 rounds. Every rank ends with the same bits.
    """
    row, data, combine = _row(group), _data(tensor), _combining(op, tensor)
    part = torch.empty_like(data)
    core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size

    # TODO 4. Powers of two first: in each round exchange with the rank whose place differs from yours in one bit, and
    # combine; after k rounds your data is the sum over 2**k ranks. Then let the places from `core` on take part: each
    # gives its data to the place `core` before it and waits there for the result.
    # YOUR CODE HERE
    raise NotImplementedError()

    _averaged(data, op, row.size)
    return tensor


class _Row(NamedTuple):
    """The ranks of a group in a row: this one stands at `place` of `size`. Peers are named by their places.

    `ranks[place]` is the global rank there. Empty tensors are not sent.
    """

    place: int
    size: int
    ranks: list[int]
    group: ProcessGroup | None

    def send(self, data: Tensor, to: int) -> None:
        """Back when the data has left."""
        if data.numel():
            dist.send(data, self.ranks[to], self.group)

    def receive(self, data: Tensor, source: int) -> None:
        """Back when the data is there."""
        if data.numel():
            dist.recv(data, self.ranks[source], self.group)

    def exchange(self, outgoing: Tensor, to: int, incoming: Tensor, source: int) -> None:
        """Send and receive at the same time; back when both are done."""
        messages = [(dist.isend, outgoing, self.ranks[to]), (dist.irecv, incoming, self.ranks[source])]
        batch = [dist.P2POp(post, data, peer, self.group) for post, data, peer in messages if data.numel()]
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()


def _row(group: ProcessGroup | None, name: str = "", first: int | None = None) -> _Row:
    """The group in the order of its ranks; where an argument `name` says so, rank `first` stands at place 0."""
    rank = dist.get_rank()
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain this rank, {rank}, got {group!r}")
    ranks = dist.get_process_group_ranks(group)
    if first is not None:
        if first not in ranks:
            raise ValueError(f"{name} must be one of the group's ranks, {ranks}, got {first!r}")
        ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
    return _Row(ranks.index(rank), len(ranks), ranks, group)


def _distances(size: int) -> list[int]:
    """1, 2, 4, ... below `size`: ceil(log2 size) of them."""
    return [1 << k for k in range((size - 1).bit_length())]


def _data(tensor: Tensor) -> Tensor:
    """What `tensor` holds, apart from its gradients: what is written there, is written into `tensor`."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or not tensor.is_contiguous():
        shown = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)[:80]
        raise ValueError(f"tensor must be a contiguous tensor, got {shown}")
    return tensor.detach()


def _combining(op: Any, tensor: Tensor) -> Callable[..., Tensor]:
    """The function that puts two tensors together as `op` says; AVG divides at the end, by `_averaged`."""
    known: dict[Any, Callable[..., Tensor]] = {ReduceOp.SUM: torch.add, ReduceOp.PRODUCT: torch.mul}
    if tensor.is_floating_point() or tensor.is_complex():
        known[ReduceOp.AVG] = torch.add
    if not tensor.is_complex():
        known |= {ReduceOp.MAX: torch.maximum, ReduceOp.MIN: torch.minimum}
    if op not in known:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, one that suits {tensor.dtype}; got {op}")
    return known[op]


def _averaged(data: Tensor, op: Any, size: int) -> None:
    if op == ReduceOp.AVG:
        data.div_(size)
