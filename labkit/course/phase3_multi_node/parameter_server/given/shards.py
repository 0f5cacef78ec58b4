"""One server's share of the parameters: pieces of them, packed into one flat buffer for each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Piece(NamedTuple):
    """Elements `start` to `stop` (excluded) of a flattened parameter."""

    parameter: int
    """Position in the list of parameters."""
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


class Shard:
    """Space for the values, or for the gradients, of one server's pieces."""

    def __init__(self, parameters: Sequence[Tensor], pieces: Sequence[Piece]) -> None:
        """parameters: all of them; they give dtypes and the device. The buffers are initially 0."""
        self.pieces = list(pieces)
        dtypes = list(dict.fromkeys(parameters[piece.parameter].dtype for piece in pieces))
        sizes = dict.fromkeys(dtypes, 0)
        places = []
        for piece in pieces:
            dtype = parameters[piece.parameter].dtype
            places.append((dtypes.index(dtype), sizes[dtype]))
            sizes[dtype] += piece.numel
        device = parameters[0].device
        self.buffers = [torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()]
        """The whole shard: one flat tensor for each dtype, the pieces in order."""
        self.views = [
            self.buffers[index].narrow(0, first, piece.numel)
            for piece, (index, first) in zip(pieces, places, strict=True)
        ]
        """For each piece its part of the buffers, 1-D."""

    @torch.no_grad()
    def copy_from(self, tensors: Sequence[Tensor | None]) -> None:
        """Fill the buffers from `tensors`, one for each parameter: values or gradients. None counts as zeros."""
        for piece, view in zip(self.pieces, self.views, strict=True):
            tensor = tensors[piece.parameter]
            if tensor is None:
                view.zero_()
            else:
                view.copy_(tensor.detach().reshape(-1)[piece.start : piece.stop])

    @torch.no_grad()
    def copy_to(self, tensors: Sequence[Tensor]) -> None:
        """Write the buffers into `tensors`, one for each parameter, in place."""
        for piece, view in zip(self.pieces, self.views, strict=True):
            tensor = tensors[piece.parameter].detach()
            whole = tensor.contiguous()  # the tensor itself, or a copy if its elements are in another order
            whole.view(-1)[piece.start : piece.stop].copy_(view)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)
