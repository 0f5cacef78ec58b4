"""Attention with the logarithm of each row's softmax denominator, which `scaled_dot_product_attention` does not return.

On CPUs, and so on virtual ranks, torch's flash kernel; on GPUs flash attention in half precision, else the
memory-efficient kernel. None of them stores the scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_ALIGNED = 32
"""Multiple to which the memory-efficient kernel pads the queries of `lse`."""


def attention_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return softmax(q k^T / sqrt(D)) v and `lse`, the logsumexp of each row of scores, at least in float32.

    q: (B, H, queries, D), k and v: (B, H, keys, D); elements of the last dimension are neighbours. The result has the
    shape and dtype of q, lse is (B, H, queries).
    """
    if q.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)  # type: ignore[no-any-return]
    if q.dtype in _HALF:
        return _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]  # type: ignore[no-any-return]
    out, lse, *_ = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
    return out, lse[..., : q.shape[2]]


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, in their dtypes. grad: of `out`."""
    given = (grad, q, k, v)
    if q.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(  # type: ignore[no-any-return]
            *given, out, lse, 0.0, causal
        )
    lse = lse.contiguous()  # the kernels of GPUs ignore its strides
    # state of the random numbers, which only dropout reads
    unused = [torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2)]
    if q.dtype in _HALF:
        sizes = (None, None, q.shape[2], k.shape[2])
        return _aten._scaled_dot_product_flash_attention_backward(  # type: ignore[no-any-return]
            *given, out, lse, *sizes, 0.0, causal, *unused
        )
    lse = F.pad(lse, (0, -lse.shape[2] % _ALIGNED), value=torch.inf)
    wanted = [True, True, True, False]
    return _aten._scaled_dot_product_efficient_attention_backward(  # type: ignore[no-any-return]
        *given, None, out, lse, *unused, 0.0, wanted, causal
    )[:3]
