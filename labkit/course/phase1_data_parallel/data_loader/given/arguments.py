"""Argument checks of samplers and loaders. Each raises ValueError with the argument's name and value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from labkit.course.number_arguments import require_integer

__all__ = ["known_device", "require_integer", "require_iterable"]


def require_iterable(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, can be iterated over."""
    if not isinstance(value, Iterable):
        raise ValueError(f"{name} must be something to iterate over, got {value!r}"[:200])


def known_device(device: torch.device | str) -> torch.device:
    """Return the device. Raises `ValueError` unless torch knows it."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one that torch knows, got {device!r}") from None
