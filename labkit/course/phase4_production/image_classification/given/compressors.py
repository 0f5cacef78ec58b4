"""Compressors of exercise 13 by their names at the shell."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from labkit.course.phase3_multi_node.gradient_compression.given.compressor import Compressor


def compressor_named(compression: str | Compressor | None, module: ModuleType) -> Any:
    """Return a new compressor of exercise 13's `module` by its name; return a compressor, or None, unchanged.

    int8: Quantized(8), onebit: OneBit(), powersgd: PowerSGD(4), topk: TopK(0.01).
    """
    if not isinstance(compression, str):
        return compression
    arguments: dict[str, tuple[str, tuple[Any, ...]]] = {
        "int8": ("Quantized", (8,)), "onebit": ("OneBit", ()), "powersgd": ("PowerSGD", (4,)), "topk": ("TopK", (0.01,))
    }  # fmt: skip
    kind, given = arguments[compression]
    return getattr(module, kind)(*given)
