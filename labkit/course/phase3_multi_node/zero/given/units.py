"""Units of a model that is sharded by modules: those whose parameters are gathered, and freed, together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Unit:
    """A module and its parameters: `flats`, one for each dtype, trained and frozen ones apart."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.flats: list[FlatParameters] = []
        self.gathering: list[dist.Work] | None = None
        """All-gathers that have begun since the parameters were freed; None: the parameters are in shards."""

    def allocate(self) -> None:
        """Give the parameters their memory, with any content."""
        for flat in self.flats:
            flat.allocate()

    def free(self) -> None:
        """Free the parameters' memory."""
        for flat in self.flats:
            flat.free()


def unit_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that are units of their own, by name: the items of the outermost `ModuleList`s and
    `Sequential`s in `module`, if they have parameters. All other parameters are those of the root, `module` itself.
    """
    units: dict[str, nn.Module] = {}

    def visit(name: str, module: nn.Module, listed: bool) -> None:
        if listed and not isinstance(module, nn.ModuleList):
            if next(module.parameters(), None) is not None:
                units[name] = module
            return
        for child, inner in module.named_children():
            inside = isinstance(module, (nn.ModuleList, nn.Sequential))
            visit(f"{name}.{child}" if name else child, inner, inside)

    visit("", module, listed=False)
    return units


def parameters_of_units(module: nn.Module, units: Sequence[Unit]) -> list[list[nn.Parameter]]:
    """Return the parameters of each unit; the first one, the root, has those of no other unit, or of several."""
    owners: dict[nn.Parameter, list[int]] = {}
    for number, unit in enumerate(units[1:], start=1):
        for parameter in unit.module.parameters():
            owners.setdefault(parameter, []).append(number)
    by_unit: list[list[nn.Parameter]] = [[] for _ in units]
    for parameter in module.parameters():
        numbers = owners.get(parameter, [])
        by_unit[numbers[0] if len(numbers) == 1 else 0].append(parameter)
    return by_unit


def batch_norm_parameters(module: nn.Module) -> set[nn.Parameter]:
    """Return the weights and biases that batch norms in `module` have: they need the dtype of the running statistics,
    which 8 bits of mantissa would round away. torch's first FSDP leaves them out of mixed precision, too.
    """
    norms = (part for part in module.modules() if isinstance(part, BATCH_NORMS))
    return {parameter for norm in norms for parameter in norm.parameters(recurse=False)}


def materialize(module: nn.Module, parameters: Sequence[nn.Parameter], device: torch.device) -> list[nn.Parameter]:
    """Replace those of the parameters that are on the meta device by new ones, initialized by `reset_parameters`.

    Returns the unit's parameters. Buffers of the same modules are initialized, too. Raises ValueError if a module
    cannot initialize its parameters.
    """
    new = {p: nn.Parameter(torch.empty_like(p, device=device), p.requires_grad) for p in parameters if p.is_meta}
    for name, part in module.named_modules():
        own = {key: p for key, p in part.named_parameters(recurse=False, remove_duplicate=False) if p in new}
        if not own:
            continue
        for key, parameter in own.items():
            setattr(part, key, new[parameter])
        for key, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.is_meta:
                setattr(part, key, torch.empty_like(buffer, device=device))
        reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if reset is None:
            raise ValueError(f"module must have reset_parameters() in {name or 'itself'} to be initialized from meta")
        reset()
    return [new.get(parameter, parameter) for parameter in parameters]


def default_device(group: ProcessGroup | None) -> torch.device:
    """Return the device for parameters that come from the meta device."""
    if torch.cuda.is_available() and dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
