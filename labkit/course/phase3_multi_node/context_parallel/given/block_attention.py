"""Attention of some queries to one block of keys and values, in one kernel: the scores are never stored."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from labkit.torch_versions.attention import attention_backward, attention_forward


def attend(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Return the attention of q to this block alone, and `lse`, the logarithm of the sum of exp(score) of each query.

    q: (B, H, queries, D); k and v: (B, G, keys, D). Query head h uses head h // (H // G) of k and v. diagonal: keys are
    at the places of the queries, and query i sees the first i + 1 of them; else it sees all. Returns (B, H, queries, D)
    and (B, H, queries), at least in float32.
    """
    out, lse = attention_forward(_by_group(q, k), _by_group(k, q), _by_group(v, q), diagonal)
    return out.to(lse.dtype).reshape(q.shape), lse.reshape(q.shape[:3])


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return this block's part of the gradient of q, and the part of these queries in the gradients of k and v.

    grad, out, lse: gradient, result and logsumexp of these queries' attention to all blocks together. A block's weights
    are exp(score - lse), so nothing else is needed of other blocks (Dao et al. 2022, appendix B). Gradients have the
    shapes of q, k and v; those of heads that share k and v are added up in lse's dtype.
    """
    grad_rows, q_rows, out_rows = _by_group(grad, k), _by_group(q, k), _by_group(out.to(q.dtype), k)
    lse_rows = lse.reshape(q_rows.shape[:3])
    dq, dk, dv = attention_backward(grad_rows, q_rows, _by_group(k, q), _by_group(v, q), out_rows, lse_rows, diagonal)
    if q.shape[1] > k.shape[1]:
        dk, dv = dk.sum(1, dtype=lse.dtype), dv.sum(1, dtype=lse.dtype)
    return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)


def _by_group(x: Tensor, other: Tensor) -> Tensor:
    """Return x (B, H or G heads, tokens, D) as (B * G, H / G, tokens, D), without a copy; `other` has the other heads.

    Kernels of some devices and versions of torch take equal numbers of heads only; a head of k and v is shown to all
    queries that use it.
    """
    groups = min(x.shape[1], other.shape[1])
    shown = x.reshape(-1, x.shape[1] // groups, *x.shape[2:])
    return shown.expand(-1, max(x.shape[1], other.shape[1]) // groups, -1, -1)


def add_to(totals: Iterable[Tensor], parts: Iterable[Tensor]) -> None:
    """Add each part to its total, in place and in the total's dtype."""
    for total, part in zip(totals, parts, strict=True):
        total.add_(part)
