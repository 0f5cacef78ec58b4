"""Arguments of compressors and of the communication optimizer, checked before any message is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labkit.course.number_arguments import require_integer, require_positive
from labkit.course.phase3_multi_node.gradient_compression.given.integer_packing import WIDTHS


def kept(ratio: float, numel: int) -> int:
    """Return how many of `numel` elements a ratio keeps: ceil(ratio * numel), so at least one if there is any."""
    return min(numel, math.ceil(ratio * numel))


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless a compressor's arguments, by name, can be used."""
    for name, value in fields.items():
        if name == "ratio":
            require_positive(name, value)
            if value > 1:
                raise ValueError(f"ratio must be at most 1, got {value}")
        if name in ("rank", "block"):
            require_integer(name, value, at_least=1)
        if name == "bits" and value not in WIDTHS[1:]:
            raise ValueError(f"bits must be 2, 4 or 8, got {value!r}")
        if name == "seed" and type(value) is not int:
            raise ValueError(f"seed must be an integer, got {value!r}")


def require_gradient(name: Any, gradient: Any) -> None:
    """Raise `ValueError` unless `name` is a text and `gradient` a tensor of floating-point numbers."""
    if not isinstance(name, str):
        raise ValueError(f"gradients must be pairs of a name and a tensor, got a name {name!r}")
    if not isinstance(gradient, Tensor) or not gradient.is_floating_point() or gradient.layout != torch.strided:
        shown = gradient.dtype if isinstance(gradient, Tensor) else type(gradient).__name__
        raise ValueError(f"gradients must be dense tensors of floating-point numbers, got {shown} for {name!r}")
