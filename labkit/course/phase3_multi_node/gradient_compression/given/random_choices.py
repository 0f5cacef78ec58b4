"""Random numbers that are equal on every rank, since they depend on a seed and on the parameter's name alone."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from labkit.course.phase3_multi_node.gradient_compression.given.arguments import kept


def _generator(*parts: object) -> torch.Generator:
    # Python's own hash of a text differs from process to process
    return torch.Generator().manual_seed(zlib.crc32(repr(parts).encode()))


def random_indices(numel: int, ratio: float, *seeds: object) -> Tensor:
    """Return ceil(ratio * numel) different indices below `numel`, int64; the same ones whenever `seeds` are equal."""
    return torch.randperm(numel, generator=_generator(*seeds))[: kept(ratio, numel)]


def random_matrix(rows: int, columns: int, like: Tensor, *seeds: object) -> Tensor:
    """Return standard normal numbers, (rows, columns), with the dtype and device of `like`; equal for equal `seeds`."""
    return torch.randn(rows, columns, generator=_generator(*seeds)).to(like)
