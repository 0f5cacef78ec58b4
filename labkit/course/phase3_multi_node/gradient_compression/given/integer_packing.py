"""Small integers packed into bytes: eight of 1 bit each, four of 2 bits, two of 4 bits."""

from __future__ import annotations

import torch
from torch import Tensor

WIDTHS = (1, 2, 4, 8)
"""Numbers of bits to which an integer can be packed."""


def pack(integers: Tensor, bits: int) -> Tensor:
    """Return `integers`, each from 0 to 2**bits - 1, in ceil(numel * bits / 8) bytes: uint8, one dimension.

    bits: 1, 2, 4 or 8. The first integer is in the lowest bits of the first byte; unused bits are 0.
    """
    flat = integers.reshape(-1).to(torch.uint8)
    if bits == 8:
        return flat
    per_byte = 8 // bits
    rows = torch.nn.functional.pad(flat, (0, -flat.numel() % per_byte)).view(-1, per_byte)
    packed: Tensor = (rows << _places(bits, flat)).sum(1, dtype=torch.uint8)
    return packed


def unpack(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Return the first `numel` integers of `packed`, uint8: the inverse of `pack`."""
    if bits == 8:
        return packed[:numel]
    rows: Tensor = (packed[:, None] >> _places(bits, packed)) & (2**bits - 1)
    return rows.view(-1)[:numel]


def unpack_signs(packed: Tensor, numel: int) -> Tensor:
    """Return plus one for each of the first `numel` bits that is 1, minus one for the others: int8."""
    return unpack(packed, 1, numel).to(torch.int8) * 2 - 1


def _places(bits: int, like: Tensor) -> Tensor:
    """Return by how many bits each integer in a byte is shifted."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=like.device)
