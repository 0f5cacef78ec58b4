"""Right: the own block before the loop; both weights of a block by their logarithms; strided views of k and v."""

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
    if layout == "zigzag":
        chunks = whole.chunk(2 * ranks, dim)
        return torch.cat((chunks[rank], chunks[-1 - rank]), dim)
    return whole.chunk(ranks, dim)[rank]


def _whole(parts: Sequence[Tensor], layout: str, dim: int) -> Tensor:
    """Return the sequence of which rank r has `parts[r]`, its tokens in dimension `dim`: the inverse of `_part`."""
    pieces = list(parts)
    if layout == "zigzag":
        in_order: list[Any] = [None] * (2 * len(parts))
        for rank, part in enumerate(parts):
            in_order[rank], in_order[-1 - rank] = part.chunk(2, dim)
        pieces = in_order
    return torch.cat(pieces, dim)


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
    if causal and source > rank:
        return (second, every, False) if layout == "zigzag" else None
    if causal and source < rank and layout == "zigzag":
        return every, first, False
    return every, every, causal and source == rank


def add_block(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Add the attention to one more block, `block_out` (..., D), to `out`, that to the blocks so far, in place.

    lse, block_lse (...): logarithm of the sum of exp(score) of each row; `lse` is updated in place, too. Of the softmax
    over all blocks, exp(block_lse) / (exp(lse) + exp(block_lse)) belongs to the new one.
    """
    total = torch.logaddexp(lse, block_lse)
    old = (lse - total).exp().unsqueeze(-1)
    new = (block_lse - total).exp().unsqueeze(-1)
    out.copy_(out * old + block_out * new)
    lse.copy_(total)


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
        arriving = given.pass_on([k, v], group) if ranks > 1 else None
        out, lse = given.attend(q, k, v, causal)
        for distance in range(1, ranks):
            k, v = arriving.wait()
            arriving = given.pass_on([k, v], group) if distance + 1 < ranks else None
            seen = visible(rank, (rank - distance) % ranks, q.shape[2], causal, layout)
            if seen:
                rows, columns, diagonal = seen
                block_out, block_lse = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
                add_block(out[:, :, rows], lse[:, :, rows], block_out, block_lse)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, own_k, own_v, out, lse)
        ctx.options = causal, layout, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (causal, layout, group) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        arriving = given.pass_on([k, v], group) if ranks > 1 else None
        dq, own_dk, own_dv = torch.zeros_like(out, dtype=lse.dtype), None, None
        leaving = None
        for distance in range(ranks):
            if distance:
                k, v = arriving.wait()
                arriving = given.pass_on([k, v], group) if distance + 1 < ranks else None
            dk, dv = torch.zeros_like(k, dtype=lse.dtype), torch.zeros_like(v, dtype=lse.dtype)
            seen = visible(rank, (rank - distance) % ranks, q.shape[2], causal, layout)
            if seen:
                r, c, diagonal = seen
                of_rows = [x[:, :, r] for x in (grad, q, out, lse)]
                parts = given.attend_backward(*of_rows[:2], k[:, :, c], v[:, :, c], *of_rows[2:], diagonal)
                given.add_to([dq[:, :, r], dk[:, :, c], dv[:, :, c]], parts)
                del parts
            if distance == 0:
                own_dk, own_dv = dk, dv
                continue
            if distance > 1:
                given.add_to([dk, dv], leaving.wait())
            leaving = given.pass_on([dk, dv], group)
        if ranks > 1:
            given.add_to([own_dk, own_dv], leaving.wait())
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
        both = merge_sequence(torch.stack((k, v)), group, layout, 3)
        for rows, columns, diagonal in pairs:
            block_out, block_lse = given.attend(q[:, :, rows], both[0, :, :, columns], both[1, :, :, columns], diagonal)
            add_block(out[:, :, rows], lse[:, :, rows], block_out, block_lse)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = causal, layout, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (causal, layout, group) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        pairs = given.visible_in_sequence(rank, ranks, q.shape[2], causal, layout)
        both = merge_sequence(torch.stack((k, v)), group, layout, 3)
        gradients = torch.zeros_like(both, dtype=lse.dtype)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        for r, c, diagonal in pairs:
            of_rows = [x[:, :, r] for x in (grad, q, out, lse)]
            parts = given.attend_backward(*of_rows[:2], both[0, :, :, c], both[1, :, :, c], *of_rows[2:], diagonal)
            given.add_to([dq[:, :, r], gradients[0, :, :, c], gradients[1, :, :, c]], parts)
        own = torch.zeros(2, *k.shape, dtype=lse.dtype, device=k.device)
        pieces = [_part(gradients, r, ranks, layout, 3).contiguous() for r in range(ranks)]
        dist.reduce_scatter(own, pieces, group=group)
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
    times = max(1, ranks // k.shape[1])
    of_all = [x.chunk(ranks, 1) for x in (q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))]
    sizes = [cut[0].shape[1] for cut in of_all]
    pieces = torch.stack([torch.cat([cut[r] for cut in of_all], 1) for r in range(ranks)])
    arrived = apply_in_group(_AllToAll, pieces, group)
    own_q, own_k, own_v = _whole([arrived[r] for r in range(ranks)], layout, 2).split(sizes, 1)
    out = F.scaled_dot_product_attention(own_q, own_k, own_v, is_causal=causal, enable_gqa=True)
    back = torch.stack([_part(out, r, ranks, layout, 2) for r in range(ranks)])
    return apply_in_group(_AllToAll, back, group).transpose(0, 1).flatten(1, 2)
