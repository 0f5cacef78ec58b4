"""Whole layers from the parts of a tensor-parallel group."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn


def whole_layer(layer: Any) -> nn.Module:
    """Return a layer with copies of its cut parameters, made whole, on every rank of its tensor-parallel group.

    All ranks of the group must call this. Parameters have the names of the whole layer.
    """
    if hasattr(layer, "to_full"):
        whole: nn.Module = layer.to_full()
        return whole
    whole = copy.copy(layer)
    whole._modules = {name: whole_layer(child) for name, child in layer.named_children()}
    return whole
