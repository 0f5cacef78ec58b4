"""Context parallelism: attention over one sequence whose tokens are spread over the ranks.

Ring attention: each rank keeps its queries, and blocks of keys and values travel around (Liu et al. 2023). Of each
block a rank adds the part that its queries take from it, with the sums of an online softmax (Milakov & Gimelshein
2018). With a causal mask, a zigzag layout gives every rank the same work. Ulysses (Jacobs et al. 2023) exchanges tokens
for heads in an all-to-all, attends to whole sequences of some heads, and changes back.
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

__all__ = ["merge_sequence", "ring_attention", "split_sequence", "ulysses_attention"]


# TODO 1. Both layouts, there and back: `x.narrow(dim, start, length)` is a piece of x, `torch.cat(pieces, dim)` joins.
def _part(whole: Tensor, rank: int, ranks: int, layout: str, dim: int) -> Tensor:
    """Return the part of rank `rank` of `ranks`.

    contiguous: the sequence is cut into one chunk for each rank, in order. zigzag: into two chunks for each rank; rank
    r has chunk r and, after it, chunk r from the end: on 2 ranks 0, 3 and 1, 2. All chunks have the same length.
    """
    ### BEGIN SOLUTION
    if layout == "contiguous":
        size = whole.shape[dim] // ranks
        return whole.narrow(dim, rank * size, size)
    size = whole.shape[dim] // (2 * ranks)
    return torch.cat([whole.narrow(dim, chunk * size, size) for chunk in (rank, 2 * ranks - 1 - rank)], dim)
    ### END SOLUTION


def _whole(parts: Sequence[Tensor], layout: str, dim: int) -> Tensor:
    """Return the sequence of which rank r has `parts[r]`."""
    ### BEGIN SOLUTION
    if layout == "zigzag":
        halves = [part.chunk(2, dim) for part in parts]
        parts = [first for first, _ in halves] + [second for _, second in reversed(halves)]
    return torch.cat(list(parts), dim)
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


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup | None = None, causal: bool = True, layout: str = "zigzag"
) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) v over the tokens of all ranks, for this rank's queries.

    q, k, v: (batch, heads, tokens, head_dim D), this rank's part in `layout`; one shape and dtype everywhere, also of
    the result. causal: a token sees those before it in the sequence, and itself; pairs of chunks that are masked as a
    whole are not computed. Forward, blocks of k and v go N-1 times to a neighbour, while the one before is computed;
    backward, so do blocks and their gradients, which are float32 or more. Beside its own block a rank holds one at hand
    and one that arrives. Raises ValueError before any communication.
    """
    return apply_in_group(_RingAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)


def _visible(rank: int, source: int, tokens: int, causal: bool, layout: str) -> tuple[slice, slice, bool] | None:
    """Return which of a rank's queries see which keys of the block of rank `source`, and whether on the diagonal.

    tokens: in each block. None if no query sees any key. All given queries see all given keys, except on the diagonal.
    """
    every, first, second = slice(None), slice(tokens // 2), slice(tokens // 2, None)
    # TODO 2. For zigzag draw the 4 x 4 chunks of two ranks: which chunks of keys are before which chunks of queries?
    ### BEGIN SOLUTION
    if not causal or source == rank:
        return every, every, causal
    if layout == "zigzag":
        return (every, first, False) if source < rank else (second, every, False)
    return (every, every, False) if source < rank else None
    ### END SOLUTION


def _add_block(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Add a block to the attention `out` (..., D) to the blocks before it, and to its `lse` (...), both in place.

    lse: logarithm of the sum of exp(score); exp(lse) may be too large for a float. Of the softmax over all blocks,
    exp(block_lse) / (exp(lse) + exp(block_lse)) belongs to the new one.
    """
    ### BEGIN SOLUTION
    out.lerp_(block_out, torch.sigmoid(block_lse - lse).unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, block_lse))
    ### END SOLUTION


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, layout: str, group: Any) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        own = (k, v)
        # Let the next block arrive while this one is computed. `given.attend(q, k, v, diagonal)`; q[:, :, rows]
        ### BEGIN SOLUTION
        for step in range(ranks):
            arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
            visible = _visible(rank, (rank - step) % ranks, q.shape[2], causal, layout)
            if visible is not None:
                rows, columns, diagonal = visible
                block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
                if step == 0:
                    out, lse = block
                else:
                    _add_block(out[:, :, rows], lse[:, :, rows], *block)
            if arriving is not None:
                k, v = arriving.wait()
        ### END SOLUTION
        out = out.to(q.dtype)
        ctx.save_for_backward(q, *own, out, lse)
        ctx.options = group, causal, layout
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (group, causal, layout) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        dq, own_dk, own_dv = (torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v))
        # TODO 3. A block's gradients travel with it, one step behind: a rank adds its part to those that arrive, and
        # passes them on; the last one is the block's own rank. Use `given.attend_backward` and `given.add_to`.
        ### BEGIN SOLUTION
        coming = None
        for step in range(ranks):
            arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
            dk, dv = (own_dk, own_dv) if step == 0 else (torch.zeros_like(own_dk), torch.zeros_like(own_dv))
            visible = _visible(rank, (rank - step) % ranks, q.shape[2], causal, layout)
            if visible is not None:
                rows, columns, diagonal = visible
                grad_rows, q_rows, out_rows, lse_rows = (x[:, :, rows] for x in (grad, q, out, lse))
                keys, values = k[:, :, columns], v[:, :, columns]
                parts = given.attend_backward(grad_rows, q_rows, keys, values, out_rows, lse_rows, diagonal)
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
    """Return what `ring_attention` does. The heads must be a multiple of the ranks: rank r attends with the r-th part.

    Two all-to-alls forward, of q, k and v together and of the result, and two backward.
    """
    q, k, v = given.check_attention(q, k, v, group, layout)
    ranks = given.check_heads(q, group)
    # TODO 4. Stack q, k and v; cut the heads; exchange; join the tokens. `F.scaled_dot_product_attention`, and back.
    ### BEGIN SOLUTION
    pieces = torch.stack(torch.stack([q, k, v]).chunk(ranks, dim=2))
    q, k, v = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=3)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    pieces = torch.stack([_part(out, rank, ranks, layout, dim=2) for rank in range(ranks)])
    return torch.cat(apply_in_group(_AllToAll, pieces, group).unbind(), dim=1)
    ### END SOLUTION
