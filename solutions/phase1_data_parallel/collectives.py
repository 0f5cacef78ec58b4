"""Collectives out of sends and receives: a server, binomial trees, Bruck's all-gather and recursive doubling.

With a latency of a seconds and b seconds for each byte, a message of n bytes takes a + bn. On N ranks, one GPU on each
machine, an all-reduce then takes (Thakur, Rabenseifner & Gropp 2005; Bruck et al. 1997 for the all-gather):

    naive                 2 (N-1) (a + bn)           one message after the other through one rank
    tree                  2 ceil(log2 N) (a + bn)    up a tree to one rank, and down again
    recursive doubling    log2 N (a + bn)            two rounds more than floor(log2 N) where N is no power of two

In every function `tensor` is contiguous and has the same shape on all ranks, and `op` is SUM, AVG, MAX, MIN or PRODUCT.
Each raises ValueError for an argument that cannot be used, before any message is sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from labkit.course.collective_arguments import combining, contiguous, group_ranks, require_member

__all__ = ["all_gather", "all_reduce_naive", "all_reduce_recursive_doubling", "all_reduce_tree", "broadcast", "reduce"]


def all_reduce_naive(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor: through the first rank.

    2(N-1) messages of the tensor's size, one after the other. This one is complete: it shows the parts in use.
    """
    row, data, combine = _row(group), contiguous("tensor", tensor), combining(op, tensor.dtype)
    if row.place > 0:
        row.send(data, 0)
        row.receive(data, 0)
    else:
        part = torch.empty_like(data)
        for place in range(1, row.size):
            row.receive(part, place)
            combine(data, part, out=data)
        if op == ReduceOp.AVG:
            data.div_(row.size)
        for place in range(1, row.size):
            row.send(data, place)
    return tensor


def broadcast(tensor: Tensor, src: int, group: ProcessGroup | None = None) -> Tensor:
    """Copy `tensor` from rank `src`, a global rank of the group, to all others, in place, and return that same tensor.

    N-1 messages of the tensor's size, in ceil(log2 N) rounds: a binomial tree. In a round a rank sends at most once.
    """
    row, data = _row(group, "src", src), contiguous("tensor", tensor)

    # TODO 1. `src` has place 0 in the row. In every round, each place that has the data sends it `distance` places on,
    # if there is such a place, and `distance` is halved: the last round is between neighbours. Which distance is first?
    # In a round with `distance`, which places have the data already, and which receive it? `_distances` may help.
    ### BEGIN SOLUTION
    for distance in reversed(_distances(row.size)):
        if row.place % (2 * distance) == distance:
            row.receive(data, row.place - distance)
        elif row.place % (2 * distance) == 0 and row.place + distance < row.size:
            row.send(data, row.place + distance)
    ### END SOLUTION

    return tensor


def reduce(tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group on rank `dst`, in place, and return that same tensor.

    dst: a global rank of the group; on other ranks `tensor` is overwritten, and its contents are undefined.
    N-1 messages of the tensor's size, in ceil(log2 N) rounds: the tree of `broadcast`, from its leaves to its root.
    """
    row, data, combine = _row(group, "dst", dst), contiguous("tensor", tensor), combining(op, tensor.dtype)
    part = torch.empty_like(data)

    # TODO 2. A broadcast played backwards: the last round comes first, and who received then sends now. What arrives in
    # `part` is put together with what is there: `combine(data, part, out=data)`.
    ### BEGIN SOLUTION
    for distance in _distances(row.size):
        if row.place % (2 * distance) == distance:
            row.send(data, row.place - distance)
        elif row.place % (2 * distance) == 0 and row.place + distance < row.size:
            row.receive(part, row.place + distance)
            combine(data, part, out=data)
    ### END SOLUTION

    if row.place == 0 and op == ReduceOp.AVG:
        data.div_(row.size)
    return tensor


def all_reduce_tree(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor: up a tree, and down again.

    2(N-1) messages of the tensor's size, in 2 ceil(log2 N) rounds.
    """
    first = _row(group).ranks[0]
    reduce(tensor, first, op, group)
    return broadcast(tensor, first, group)


def all_gather(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return all ranks' tensors, on every rank: shape (N, *shape), row r from the r-th rank. `tensor` stays unchanged.

    Each rank sends N-1 times the tensor's bytes, in ceil(log2 N) messages and rounds (Bruck et al. 1997).
    """
    row, data = _row(group), contiguous("tensor", tensor)
    rows = data.new_empty((row.size, *data.shape))
    rows[0] = data

    # TODO 3. Let `rows[i]` be the tensor of the rank i places after yours. While you hold `held` rows (1,
    # 2, 4, ...), the rank `held` places after you holds just those that come next. `row.exchange` them, but no more
    # than are missing: in the last round there may be fewer. Then turn the rows: the first rank's belongs into row 0.
    ### BEGIN SOLUTION
    for held in _distances(row.size):
        more = min(held, row.size - held)
        before, after = (row.place - held) % row.size, (row.place + held) % row.size
        row.exchange(rows[:more], before, rows[held : held + more], after)
    rows = rows.roll(row.place, dims=0)
    ### END SOLUTION

    return rows


def all_reduce_recursive_doubling(tensor: Tensor, op: Any = ReduceOp.SUM, group: ProcessGroup | None = None) -> Tensor:
    """Reduce `tensor` over the group, in place on every rank, and return that same tensor: all ranks work all the time.

    log2 N rounds; in each a rank exchanges the whole tensor with another. If N is no power of two, the places from
    `core` on send first and get the result last: floor(log2 N) + 2 rounds. Every rank ends with the same bits.
    """
    row, data, combine = _row(group), contiguous("tensor", tensor), combining(op, tensor.dtype)
    part = torch.empty_like(data)
    core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size

    # TODO 4. Powers of two first: in each round exchange with the rank whose place differs from yours in one bit, and
    # combine; after k rounds your data is the sum over 2**k ranks. Then let the places from `core` on take part: each
    # gives its data to the place `core` before it and waits there for the result.
    ### BEGIN SOLUTION
    if row.place >= core:
        row.send(data, row.place - core)
        row.receive(data, row.place - core)
    else:
        partner = row.place + core
        if partner < row.size:
            row.receive(part, partner)
            combine(data, part, out=data)
        for distance in _distances(core):
            row.exchange(data, row.place ^ distance, part, row.place ^ distance)
            combine(data, part, out=data)
        if partner < row.size:
            row.send(data, partner)
    ### END SOLUTION

    if op == ReduceOp.AVG:
        data.div_(row.size)
    return tensor


class _Row(NamedTuple):
    """A group's ranks in a row: `place` is this rank's, `ranks[place]` its global rank. Empty tensors are not sent."""

    place: int
    size: int
    ranks: list[int]
    group: ProcessGroup | None

    def send(self, data: Tensor, to: int) -> None:
        """Return when the data has left."""
        if data.numel():
            dist.send(data, self.ranks[to], self.group)

    def receive(self, data: Tensor, source: int) -> None:
        """Return when the data has arrived."""
        if data.numel():
            dist.recv(data, self.ranks[source], self.group)

    def exchange(self, outgoing: Tensor, to: int, incoming: Tensor, source: int) -> None:
        """Send and receive at the same time; return when both are done."""
        messages = [(dist.isend, outgoing, self.ranks[to]), (dist.irecv, incoming, self.ranks[source])]
        batch = [dist.P2POp(post, data, peer, self.group) for post, data, peer in messages if data.numel()]
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()


def _row(group: ProcessGroup | None, name: str = "", first: int | None = None) -> _Row:
    """Return the group in the order of its ranks, or turned so that rank `first`, the argument `name`, has place 0."""
    ranks = group_ranks(group)
    if first is not None:
        require_member(name, first, ranks)
        ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
    return _Row(ranks.index(dist.get_rank()), len(ranks), ranks, group)


def _distances(size: int) -> list[int]:
    """Return 1, 2, 4, ... below `size`: ceil(log2 size) numbers."""
    return [1 << k for k in range((size - 1).bit_length())]
