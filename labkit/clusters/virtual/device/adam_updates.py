"""Adam on fake tensors: an update that some rank has done before on the same shapes runs no operators.

An update runs a dozen operators for each parameter: half of the time of a training step on fake tensors. All that it
leaves behind follows from the shapes: the time, the temporary memory, and an increment of each count of steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import get_default_dtype
from torch.autograd.graph import increment_version

from labkit.clusters.virtual.device.fake_charging import Charge, FakeAccounting
from labkit.torch_versions.dispatch import DisableTorchDispatch, top_mode
from labkit.torch_versions.dtensors import local_part
from labkit.torch_versions.fake_tensors import FakeTensor, device_of, value_of
from labkit.torch_versions.optimizers import Update, adam_with


def install() -> None:
    """Let ranks with accounts on fake tensors repeat known updates. Once per process."""
    adam_with(_update)


def _update(original: Update, lists: tuple[list[Any], ...], options: dict[str, Any]) -> None:
    accounting = top_mode()
    if not isinstance(accounting, FakeAccounting) or (key := _key(accounting, lists, options)) is None:
        original(*lists, **options)
        return
    known = accounting.known_updates.get(key)
    if known is not None:
        _repeat(accounting, known, lists)
        return
    with accounting.listing() as charges:
        original(*lists, **options)
    if charges:
        accounting.known_updates[key] = charges


def _repeat(accounting: FakeAccounting, charges: list[Charge], lists: tuple[list[Any], ...]) -> None:
    params, _, averages, squares, largest, steps = lists
    accounting.charge_again(charges)
    increment_version([*params, *averages, *squares, *largest])
    with DisableTorchDispatch():
        for step in steps:
            step.constant.add_(1)


def _key(accounting: FakeAccounting, lists: tuple[list[Any], ...], options: dict[str, Any]) -> Any:
    """Everything that the time and the memory of the update depend on; None if that is unknown."""
    *updated, steps = lists
    if len(updated) != 5 or torch.is_grad_enabled() or any(value_of(step) is None for step in steps):
        return None
    parts: list[Any] = [get_default_dtype(), accounting.account.in_optimizer]
    for name, option in options.items():
        if option.__class__ not in (float, int, bool, type(None)):
            return None
        parts += name, option is None, bool(option)  # a factor of 0 leaves operators out
    place_of = accounting.account.place_of
    meshes = [local_part(parameter)[1] for parameter in updated[0]]
    for tensors in updated:
        parts.append(len(tensors))
        for tensor, mesh in zip(tensors, meshes, strict=False):  # the largest squares may be left out
            local, on, placements = local_part(tensor)
            if local.__class__ is not FakeTensor or local.constant is not None or on is not mesh:
                return None
            parts += placements, local.shape, local.stride(), local.dtype, device_of(local), place_of(local)
    return tuple(parts)
