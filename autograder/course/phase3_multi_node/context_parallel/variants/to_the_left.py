"""Right: sends to the left, k and v in one message; exponentials with their maximum; gathered blocks one by one."""

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


def _order(ranks: int, layout: str) -> list[int]:
    """Half chunks in the order in which the ranks have them."""
    if layout == "contiguous":
        return list(range(2 * ranks))
    return [chunk for rank in range(ranks) for chunk in (rank, 2 * ranks - 1 - rank)]


def _part(whole: Tensor, rank: int, ranks: int, layout: str, dim: int) -> Tensor:
    if layout == "contiguous":
        return whole.tensor_split(ranks, dim)[rank]
    chunks = whole.tensor_split(2 * ranks, dim)
    return torch.cat([chunks[number] for number in _order(ranks, layout)[2 * rank : 2 * rank + 2]], dim)


def _whole(parts: Sequence[Tensor], layout: str, dim: int) -> Tensor:
    if layout == "contiguous":
        return torch.cat(list(parts), dim)
    halves = [half for part in parts for half in part.tensor_split(2, dim)]
    order = _order(len(parts), layout)
    return torch.cat([halves[order.index(number)] for number in range(len(halves))], dim)


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


def visible(rank: int, source: int, tokens: int, causal: bool, layout: str) -> tuple[slice, slice, bool] | None:
    half, all_ = tokens // 2, slice(0, tokens)
    before = source < rank
    if not causal or rank == source:
        return all_, all_, causal
    if layout == "contiguous":
        return (all_, all_, False) if before else None
    return (all_, slice(0, half), False) if before else (slice(half, tokens), all_, False)


def add_block(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    highest = torch.maximum(lse, block_lse)
    old, new = torch.exp(lse - highest), torch.exp(block_lse - highest)
    out.mul_((old / (old + new)).unsqueeze(-1)).add_(block_out * (new / (old + new)).unsqueeze(-1))
    lse.copy_(highest + torch.log(old + new))


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


class _Ring:
    """k and v, or their gradients, that go to the rank before."""

    def __init__(self, tensor: Tensor, group: ProcessGroup | None) -> None:
        ranks, rank = dist.get_process_group_ranks(group or dist.group.WORLD), dist.get_rank(group)
        self.sent, self.received = tensor, torch.empty_like(tensor)
        self.works = [
            dist.isend(tensor, ranks[(rank - 1) % len(ranks)], group=group),
            dist.irecv(self.received, ranks[(rank + 1) % len(ranks)], group=group),
        ]

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.received


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, layout: str, group: Any) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        dtype = torch.promote_types(q.dtype, torch.float32)
        total = torch.zeros_like(q, dtype=dtype)
        weight = torch.zeros(q.shape[:3], dtype=dtype, device=q.device)
        most = torch.full_like(weight, -torch.inf)
        both = torch.stack([k, v]) if ranks > 1 else (k, v)
        for step in range(ranks):
            ring = _Ring(both, group) if step + 1 < ranks else None
            for rows, columns, diagonal in filter(
                None, [visible(rank, (rank + step) % ranks, q.shape[2], causal, layout)]
            ):
                block, lse = given.attend(q[:, :, rows], both[0][:, :, columns], both[1][:, :, columns], diagonal)
                highest = torch.maximum(most[:, :, rows], lse)
                before, now = (most[:, :, rows] - highest).exp(), (lse - highest).exp()
                total[:, :, rows].mul_(before[..., None]).add_(block.mul_(now[..., None]))
                weight[:, :, rows].mul_(before).add_(now)
                most[:, :, rows] = highest
            if ring is not None:
                both = ring.wait()
        del both
        out = total.div_(weight[..., None]).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, most + weight.log())
        ctx.options = causal, layout, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (causal, layout, group) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        dq, own = torch.zeros_like(q, dtype=lse.dtype), torch.zeros(2, *k.shape, dtype=lse.dtype, device=k.device)
        both, gradients, ring = torch.stack([k, v]) if ranks > 1 else (k, v), own, None
        for step in range(ranks):
            next_block = _Ring(both, group) if step + 1 < ranks else None
            if step:
                gradients = torch.zeros_like(own)
            for rows, columns, diagonal in filter(
                None, [visible(rank, (rank + step) % ranks, q.shape[2], causal, layout)]
            ):
                own_rows = [x[:, :, rows] for x in (grad, q, out, lse)]
                keys, values = both[0][:, :, columns], both[1][:, :, columns]
                found = given.attend_backward(*own_rows[:2], keys, values, *own_rows[2:], diagonal)
                dq[:, :, rows] += found[0]
                gradients[0][:, :, columns] += found[1]
                gradients[1][:, :, columns] += found[2]
                del found
            if ring is not None:
                gradients += ring.wait()
            if step:
                ring = _Ring(gradients, group)
            if next_block is not None:
                both = next_block.wait()
        if ring is not None:
            own += ring.wait()
        return dq.to(q.dtype), own[0].to(q.dtype), own[1].to(q.dtype), None, None, None


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
        own = torch.stack([k, v])
        parts = list(torch.empty(ranks, *own.shape, dtype=k.dtype, device=k.device))
        dist.all_gather(parts, own, group=group)
        out = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))
        lse = torch.full_like(out[..., 0], -torch.inf)
        for source, part in enumerate(parts):
            pair = visible(rank, source, q.shape[2], causal, layout)
            if pair is None:
                continue
            rows, columns, diagonal = pair
            block, block_lse = given.attend(q[:, :, rows], part[0][:, :, columns], part[1][:, :, columns], diagonal)
            add_block(out[:, :, rows], lse[:, :, rows], block, block_lse)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = causal, layout, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, out, lse), (causal, layout, group) = ctx.saved_tensors, ctx.options
        rank, ranks, grad = dist.get_rank(group), dist.get_world_size(group), grad.contiguous()
        own = torch.stack([k, v])
        parts = list(torch.empty(ranks, *own.shape, dtype=k.dtype, device=k.device))
        dist.all_gather(parts, own, group=group)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        pieces = [torch.zeros_like(own, dtype=lse.dtype) for _ in range(ranks)]
        for source, part in enumerate(parts):
            pair = visible(rank, source, q.shape[2], causal, layout)
            if pair is None:
                continue
            rows, columns, diagonal = pair
            found = given.attend_backward(
                grad[:, :, rows],
                q[:, :, rows],
                part[0][:, :, columns],
                part[1][:, :, columns],
                out[:, :, rows],
                lse[:, :, rows],
                diagonal,
            )
            dq[:, :, rows] += found[0]
            pieces[source][0][:, :, columns] += found[1]
            pieces[source][1][:, :, columns] += found[2]
        mine = torch.empty_like(pieces[rank])
        dist.reduce_scatter(mine, pieces, group=group)
        return dq.to(q.dtype), mine[0].to(q.dtype), mine[1].to(q.dtype), None, None, None


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
    b, h, t, d = q.shape
    g = max(k.shape[1], ranks)
    wanted = torch.arange(g, device=k.device) * k.shape[1] // g
    keys, values = k[:, wanted], v[:, wanted]
    by_rank = [x.reshape(b, ranks, -1, t, d) for x in (q, keys, values)]
    arrived = apply_in_group(_AllToAll, torch.cat(by_rank, dim=2).transpose(0, 1).contiguous(), group)
    tokens = _whole(list(arrived), layout, dim=2)
    q, k, v = tokens[:, : h // ranks], tokens[:, h // ranks : (h + g) // ranks], tokens[:, (h + g) // ranks :]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    back = torch.stack([_part(out, rank, ranks, layout, 2) for rank in range(ranks)])
    return apply_in_group(_AllToAll, back, group).transpose(0, 1).reshape(b, h, t, d)
