"""State of an optimizer of shards, in the form of whole parameters, so that any number of ranks can load it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.clusters.device import to_host
from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters

Join = Callable[[Sequence[Tensor], int], Tensor]


def gathered_state(flats: Sequence[FlatParameters], optimizer: Optimizer) -> dict[Hashable, dict[str, Any]]:
    """Return the state of each parameter by its key, in host memory, on every rank. One all-gather for each tensor."""
    gathered: dict[Hashable, dict[str, Any]] = {}
    for flat in flats:
        state = optimizer.state.get(flat.shard, {})
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == flat.shard.shape:
                values: list[Any] = [to_host(part) for part in flat.split(flat.gather(value))]
            else:
                values = [value.clone() if isinstance(value, Tensor) else value for _ in flat.keys]
            for key, item in zip(flat.keys, values, strict=True):
                gathered.setdefault(key, {})[name] = item
    return gathered


def load_state(
    flats: Sequence[FlatParameters], optimizer: Optimizer, state: Mapping[Hashable, Mapping[str, Any]], join: Join
) -> None:
    """Give each shard of the optimizer its part of a `gathered_state`."""
    optimizer.state.clear()
    for flat in flats:
        entries = [state[key] for key in flat.keys if key in state]
        if not entries:
            continue
        if len(entries) < len(flat.keys):
            raise ValueError(f"state must have an entry for each of {flat.keys}, got {[*state]}")
        for name, first in entries[0].items():
            value = first.clone() if isinstance(first, Tensor) else first
            if isinstance(first, Tensor) and first.shape == flat.parameters[0].shape and first.dim():
                parts = [entry[name].to(flat.full.device).reshape(-1) for entry in entries]
                whole = join(parts, len(flat.full) // len(flat.shard))
                value = to_host(flat.own_part(whole)) if flat.offload else flat.own_part(whole).clone()
            optimizer.state[flat.shard][name] = value


def group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group, without its parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def no_grad_loss(closure: Callable[[], Any] | None) -> Any:
    """Call an optimizer's closure with gradients enabled and return its result; return None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
