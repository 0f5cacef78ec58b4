"""Offloading: which tensors stay where they are, and which devices can hold the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.course.arguments import known_device
from labkit.torch_versions.tensors import view_base


def storage_device(device: torch.device | str) -> torch.device:
    """Return `device` as a torch.device. Raises ValueError if torch does not know it or it cannot hold values."""
    known = known_device(device)
    if known.type == "meta":
        raise ValueError(f"device must hold values, got {device!r}")
    return known


def is_parameter(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter or a view of one: a linear layer saves its weight transposed."""
    base = view_base(tensor)
    return isinstance(tensor if base is None else base, nn.Parameter)
