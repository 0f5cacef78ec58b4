"""Attention of some queries to one block of keys and values, in one kernel: the scores are never stored."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from labkit.torch_versions.attention import attention_backward, attention_forward


def attend(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Return the attention of q to this block alone, and `lse`, the logarithm of the sum of exp(score) of each query.

    q: (B, H, queries, D); k and v: (B, H, keys, D). diagonal: keys are at the places of the queries, and query i sees
    the first i + 1 of them; else it sees all. Returns (B, H, queries, D) and (B, H, queries), at least in float32.
    """
    out, lse = attention_forward(q, k, v, diagonal)
    return out.to(lse.dtype), lse


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return this block's part of the gradient of q, and the part of these queries in the gradients of k and v.

    grad, out, lse: gradient, result and logsumexp of these queries' attention to all blocks together. A block's weights
    are exp(score - lse), so nothing else is needed of other blocks (Dao et al. 2022, appendix B).
    """
    return attention_backward(grad, q, k, v, out.to(q.dtype), lse, diagonal)


def add_to(totals: Iterable[Tensor], parts: Iterable[Tensor]) -> None:
    """Add each part to its total, in place and in the total's dtype."""
    for total, part in zip(totals, parts, strict=True):
        total.add_(part)
