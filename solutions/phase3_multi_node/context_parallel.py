"""Context parallelism: attention over one sequence whose tokens are spread over the ranks.

Queries stay; keys and values come to them, in one of two ways, or tokens are exchanged for heads:

- ring_attention (Liu et al. 2023): blocks of keys and values travel around. A rank adds what its queries take from each
  block, by an online softmax (Milakov & Gimelshein 2018), while the next block arrives.
- gather_attention (Llama 3, section 3.3.2): one all-gather brings all keys and values.
- ulysses_attention (Jacobs et al. 2023): an all-to-all brings all tokens of some heads, another one takes results back.

With a causal mask, the zigzag layout gives every rank the same work. In grouped-query attention (Ainslie et al. 2023)
keys and values have fewer heads G than the queries' H: query head h uses key and value head h // (H // G).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase2_advanced.tensor_parallel.given.parts import apply_in_group
from labkit.course.phase3_multi_node.context_parallel import given

__all__ = [
    "add_block",
    "gather_attention",
    "merge_sequence",
    "ring_attention",
    "split_sequence",
    "ulysses_attention",
    "visible",
]

# Layouts --------------------------------------------------------------------------------------------------------------


def _part(whole: Tensor, rank: int, ranks: int, layout: str, dim: int) -> Tensor:
    """Return the part of rank `rank` of `ranks` of a sequence whose tokens are in dimension `dim`.

    contiguous: the sequence is cut into one chunk for each rank, in order. zigzag: into two chunks for each rank; rank
    r has chunk r and, after it, chunk r from the end: on 2 ranks 0, 3 and 1, 2. All chunks have the same length.
    """
    # TODO 1. Cut this rank's part out of `whole`. `whole.narrow(dim, start, length)` is a piece of it, and
    # `torch.cat(pieces, dim)` joins pieces. The length is a multiple of the chunks; dim may be negative.
    ### BEGIN SOLUTION
    if layout == "contiguous":
        size = whole.shape[dim] // ranks
        return whole.narrow(dim, rank * size, size)
    size = whole.shape[dim] // (2 * ranks)
    first = whole.narrow(dim, rank * size, size)
    second = whole.narrow(dim, (2 * ranks - 1 - rank) * size, size)
    return torch.cat([first, second], dim)
    ### END SOLUTION


def _whole(parts: Sequence[Tensor], layout: str, dim: int) -> Tensor:
    """Return the sequence of which rank r has `parts[r]`, its tokens in dimension `dim`: the inverse of `_part`."""
    # TODO 2. Join the parts, in the order of the tokens. `part.chunk(2, dim)` returns the halves of a zigzag part.
    ### BEGIN SOLUTION
    if layout == "contiguous":
        return torch.cat(list(parts), dim)
    first_halves, second_halves = [], []
    for part in parts:
        first, second = part.chunk(2, dim)
        first_halves.append(first)
        second_halves.append(second)
    return torch.cat(first_halves + second_halves[::-1], dim)
    ### END SOLUTION


def split_sequence(x: Tensor, group: ProcessGroup | None = None, layout: str = "zigzag", dim: int = 1) -> Tensor:
    """Return this rank's part of x, which all ranks have; its tokens are in dimension `dim`. Sends nothing.

    Raises ValueError unless they are a multiple of the chunks: the size of the group, with zigzag twice that.
    """
    rank, ranks = given.check_split(x, group, layout, dim)
    return _part(x, rank, ranks, layout, dim)


def merge_sequence(x: Tensor, group: ProcessGroup | None = None, layout: str = "zigzag", dim: int = 1) -> Tensor:
    """Return the sequence of which every rank has the part x, without gradients, on every rank. One all-gather."""
    parts = [torch.empty_like(x).contiguous() for _ in range(given.check_merge(x, group, layout, dim))]
    dist.all_gather(parts, x.detach().contiguous(), group=group)
    return _whole(parts, layout, dim)


# What a block adds ----------------------------------------------------------------------------------------------------


def visible(rank: int, source: int, tokens: int, causal: bool, layout: str) -> tuple[slice, slice, bool] | None:
    """Return which queries of `rank` see which keys of the block of rank `source`, or None if none sees any.

    tokens: of each rank. Returns (rows, columns, diagonal): slices of the rank's queries and of the block's keys. Every
    query of `rows` sees every key of `columns`; with `diagonal`, only the keys up to its own place.
    """
    every, first, second = slice(None), slice(tokens // 2), slice(tokens // 2, None)
    # TODO 3. Four cases: no mask; the rank's own block; a block from a lower rank; one from a higher rank. Layouts
    # differ in the last two. For zigzag draw the 4 x 4 chunks of two ranks: which chunks of keys are before which of
    # queries?
    ### BEGIN SOLUTION
    if not causal:
        return every, every, False
    if source == rank:
        return every, every, True
    if layout == "zigzag":
        return (every, first, False) if source < rank else (second, every, False)
    return (every, every, False) if source < rank else None
    ### END SOLUTION


def add_block(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Add the attention to one more block, `block_out` (..., D), to `out`, that to the blocks so far, in place.

    lse, block_lse (...): logarithm of the sum of exp(score) of each row; `lse` is updated in place, too. Of the softmax
    over all blocks, exp(block_lse) / (exp(lse) + exp(block_lse)) belongs to the new one.
    """
    # TODO 4. Update `out`, then `lse`. exp(lse) may be too large for a float: find a form of the new block's share that
    # needs no exp of either. `torch.sigmoid`, `torch.logaddexp`, `out.lerp_(end, weight)`; in place, not `out = ...`.
    ### BEGIN SOLUTION
    share = torch.sigmoid(block_lse - lse)
    out.lerp_(block_out, share.unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, block_lse))
    ### END SOLUTION


# Ring attention -------------------------------------------------------------------------------------------------------


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup | None = None, causal: bool = True, layout: str = "zigzag"
) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) v over the tokens of all ranks, for this rank's queries.

    q: (batch, H heads, tokens, head_dim D), k and v: (batch, G heads, tokens, D), H a multiple of G: this rank's part
    in `layout`. One dtype; shapes are the same on all ranks; the result has shape and dtype of q. causal: a token sees
    those before it in the sequence, and itself; pairs of chunks that are masked as a whole are not computed.

    Forward, blocks of k and v go N-1 times to a neighbour, while the one before is computed; backward, so do blocks and
    their gradients, which are float32 or more on the way, whatever the dtype. Beside its own block a rank holds one at
    hand and one that arrives. Raises ValueError before any communication.
    """
    return apply_in_group(_RingAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, layout: str, group: Any) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        own_k, own_v = k, v
        # TODO 5. Make `out` and `lse`, in the dtype that `given.attend` returns, of all N blocks. Step 0 has this
        # rank's own block; then N-1 blocks come from the left. Start `given.pass_on([k, v], group)` before you compute,
        # wait for it after; the last block goes nowhere. Of each block compute what `visible` returns: `q[:, :, rows]`
        # are queries.
        ### BEGIN SOLUTION
        for step in range(ranks):
            arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
            pair = visible(rank, (rank - step) % ranks, q.shape[2], causal, layout)
            if pair is not None:
                rows, columns, diagonal = pair
                block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
                if step == 0:
                    out, lse = block
                else:
                    add_block(out[:, :, rows], lse[:, :, rows], *block)
            if arriving is not None:
                k, v = arriving.wait()
        ### END SOLUTION
        out = out.to(q.dtype)
        ctx.save_for_backward(q, own_k, own_v, out, lse)
        ctx.options = causal, layout, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (causal, layout, group) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        # TODO 6. Make `dq`, `own_dk` and `own_dv`, in `lse.dtype`: a sum in bfloat16 loses what is less than 1/512 of
        # it. Blocks pass by as in `forward`. A block's gradients follow one step behind: add your part of them
        # (`given.attend_backward`, `given.add_to`) to those that have arrived, and pass the sum on, N-1 times in all;
        # the block's own rank, which has kept its part since step 0, is the last. Compute before you wait.
        ### BEGIN SOLUTION
        dq = torch.zeros_like(q, dtype=lse.dtype)
        own_dk = torch.zeros_like(k, dtype=lse.dtype)
        own_dv = torch.zeros_like(v, dtype=lse.dtype)
        coming = None
        for step in range(ranks):
            arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
            dk, dv = (own_dk, own_dv) if step == 0 else (torch.zeros_like(own_dk), torch.zeros_like(own_dv))
            pair = visible(rank, (rank - step) % ranks, q.shape[2], causal, layout)
            if pair is not None:
                rows, columns, diagonal = pair
                keys, values = k[:, :, columns], v[:, :, columns]
                parts = given.attend_backward(
                    grad[:, :, rows], q[:, :, rows], keys, values, out[:, :, rows], lse[:, :, rows], diagonal
                )
                given.add_to([dq[:, :, rows], dk[:, :, columns], dv[:, :, columns]], parts)
            if coming is not None:
                given.add_to([dk, dv], coming.wait())
            if step > 0:
                coming = given.pass_on([dk, dv], group)
            if arriving is not None:
                k, v = arriving.wait()
        if coming is not None:
            given.add_to([own_dk, own_dv], coming.wait())
        ### END SOLUTION
        return dq.to(q.dtype), own_dk.to(q.dtype), own_dv.to(q.dtype), None, None, None


# Gather ---------------------------------------------------------------------------------------------------------------


def gather_attention(
    q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup | None = None, causal: bool = True, layout: str = "zigzag"
) -> Tensor:
    """Return what `ring_attention` does, from the same arguments.

    Forward, one all-gather of k and v together. Backward, the same once more, since a rank saves its own k and v only,
    and one reduce-scatter of both gradients, float32 or more.
    """
    return apply_in_group(_GatherAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)


class _GatherAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, layout: str, group: Any) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        out = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))
        lse = torch.full_like(out[..., 0], -torch.inf)  # no block yet
        pairs = given.visible_in_sequence(rank, ranks, q.shape[2], causal, layout)
        # TODO 7. Gather k and v, stacked, with one `merge_sequence`: which dimension has the tokens then? Each of
        # `pairs` is (rows, columns, diagonal), with columns of the whole sequence: attend to it, and add it to `out`
        # and `lse`.
        ### BEGIN SOLUTION
        keys, values = merge_sequence(torch.stack([k, v]), group, layout, dim=3)
        for rows, columns, diagonal in pairs:
            block = given.attend(q[:, :, rows], keys[:, :, columns], values[:, :, columns], diagonal)
            add_block(out[:, :, rows], lse[:, :, rows], *block)
        ### END SOLUTION
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = causal, layout, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (causal, layout, group) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        pairs = given.visible_in_sequence(rank, ranks, q.shape[2], causal, layout)
        # TODO 8. Make `dq`, and `own`, the stacked gradients of this rank's k and v, in `lse.dtype`. Gather k and v
        # again; add up the gradients of the whole sequence's k and v from all pairs; cut them with `_part`, a
        # contiguous piece for each rank; `dist.reduce_scatter(own, pieces, group=group)` puts the sum of all ranks'
        # pieces into `own`.
        ### BEGIN SOLUTION
        keys, values = merge_sequence(torch.stack([k, v]), group, layout, dim=3)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        both = torch.zeros(2, *keys.shape, dtype=lse.dtype, device=keys.device)
        dk, dv = both
        for rows, columns, diagonal in pairs:
            seen_k, seen_v = keys[:, :, columns], values[:, :, columns]
            parts = given.attend_backward(
                grad[:, :, rows], q[:, :, rows], seen_k, seen_v, out[:, :, rows], lse[:, :, rows], diagonal
            )
            given.add_to([dq[:, :, rows], dk[:, :, columns], dv[:, :, columns]], parts)
        pieces = [_part(both, other, ranks, layout, dim=3).contiguous() for other in range(ranks)]
        own = torch.empty_like(pieces[rank])
        dist.reduce_scatter(own, pieces, group=group)
        ### END SOLUTION
        return dq.to(q.dtype), own[0].to(q.dtype), own[1].to(q.dtype), None, None, None


# Ulysses --------------------------------------------------------------------------------------------------------------


class _AllToAll(torch.autograd.Function):
    """Exchange x (N, ...): x[j] goes to rank j, and result[j] comes from rank j. Gradients are exchanged likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group, result = group, torch.empty_like(x)
        dist.all_to_all_single(result, x.contiguous(), group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return apply_in_group(_AllToAll, grad.contiguous(), ctx.group), None


def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup | None = None, causal: bool = True, layout: str = "zigzag"
) -> Tensor:
    """Return what `ring_attention` does. H must be a multiple of the ranks N: rank r attends with the r-th part of it.

    So must G be; or it divides N, and each head of k and v is sent to the N / G ranks that need it. Two all-to-alls
    forward, of q, k and v together and of the result, and two backward.
    """
    q, k, v = given.check_attention(q, k, v, group, layout)
    ranks = given.check_heads(q, k, group)
    # TODO 9. `apply_in_group(_AllToAll, pieces, group)` exchanges stacked pieces, one for each rank. With too few heads
    # of k and v, repeat each (`x.repeat_interleave(times, dim)`). A piece has some heads of q, of k and of v, all of
    # this rank's tokens: `x.chunk(ranks, dim)`. What comes has all tokens: `_whole`, and `x.split(sizes, dim)` gives q,
    # k and v again. `F.scaled_dot_product_attention(..., is_causal=causal, enable_gqa=True)` attends; `_part` cuts the
    # result for the way back.
    ### BEGIN SOLUTION
    if k.shape[1] < ranks:
        copies = ranks // k.shape[1]
        k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)
    cut_q, cut_k, cut_v = q.chunk(ranks, dim=1), k.chunk(ranks, dim=1), v.chunk(ranks, dim=1)
    pieces = torch.stack([torch.cat([cut_q[r], cut_k[r], cut_v[r]], dim=1) for r in range(ranks)])
    tokens = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=2)
    q, k, v = tokens.split([cut_q[0].shape[1], cut_k[0].shape[1], cut_v[0].shape[1]], dim=1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    pieces = torch.stack([_part(out, r, ranks, layout, dim=2) for r in range(ranks)])
    return torch.cat(apply_in_group(_AllToAll, pieces, group).unbind(), dim=1)
    ### END SOLUTION
