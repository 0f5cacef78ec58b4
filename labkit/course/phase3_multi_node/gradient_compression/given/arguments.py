"""Arguments of compressors and of the communication optimizer, checked before any message is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from labkit.course.arguments import instance_of, integer, number, one_of, require, tensor
from labkit.course.phase3_multi_node.gradient_compression.given.integer_packing import WIDTHS

_FIELDS = {
    "ratio": number(above=0, at_most=1),
    "rank": integer(at_least=1),
    "block": integer(at_least=1),
    "bits": one_of(*WIDTHS[1:]),
    "seed": integer(),
}
"""Rules of compressors' arguments, by name."""


def kept(ratio: float, numel: int) -> int:
    """Return how many of `numel` elements a ratio keeps: ceil(ratio * numel), so at least one if there is any."""
    return min(numel, math.ceil(ratio * numel))


def require_fields(fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless a compressor's arguments, by name, can be used."""
    for name, value in fields.items():
        if name in _FIELDS:
            require(name, value, _FIELDS[name])


def require_gradient(name: Any, gradient: Any) -> None:
    """Raise `ValueError` unless `name` is a text and `gradient` a tensor of floating-point numbers."""
    require("gradients", name, instance_of(str, "pairs of a name and a tensor"))
    require(f"gradients[{name!r}]", gradient, tensor(floating_point=True))
