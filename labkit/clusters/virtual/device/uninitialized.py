"""Marks memory that was allocated and never written, so that a check can tell it from a wrong result.

On request glibc fills the memory that `malloc` returns with one byte. That costs as much as the first write, and
changes no program that writes before it reads. Other C libraries leave such memory unchanged; then it is not
recognised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.linux.libc import libc

_BYTE = 0xFE
"""Four of them are -1.69e38 as float32, -16843010 as int32."""
_M_PERTURB = -6


def mark() -> None:
    """Fill all memory that this process allocates from now on with that byte."""
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_PERTURB, _BYTE ^ 0xFF)  # glibc takes the complement


def marked(tensor: Tensor) -> Tensor:
    """Whether each element of a tensor in this process's memory, flattened, looks as if it was never written.

    Certain for elements of four bytes and more; a smaller one may have that value by chance.
    """
    if tensor.dtype is torch.bool or not tensor.numel():
        return torch.zeros(tensor.numel(), dtype=torch.bool)
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (flat.view(torch.uint8).reshape(flat.numel(), -1) == _BYTE).all(dim=1)
