"""A tensor in blocks, rows of equal length, and as a matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def in_blocks(tensor: Tensor, block: int) -> Tensor:
    """Return the elements of `tensor` in rows of `block`: (ceil(numel / block), block), the last padded with zeros."""
    flat = tensor.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)


def from_blocks(blocks: Tensor, shape: torch.Size) -> Tensor:
    """Return the elements of `blocks` in `shape`, without the padding: the inverse of `in_blocks`."""
    return blocks.reshape(-1)[: shape.numel()].view(shape)


def matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """Return rows and columns of a gradient as a matrix: its first dimension, and all others together.

    A vector is one column; a scalar is (1, 1).
    """
    return (shape[0] if shape else 1), shape[1:].numel()
