"""Base of exercise 15's `FullyShardedDataParallel`: units in the order of their use, and states for any ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.clusters.device import to_host
from labkit.course.collective_arguments import group_ranks
from labkit.course.phase3_multi_node.ddp.given import broadcast_together
from labkit.course.phase3_multi_node.zero.given.arguments import require_module
from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters, alike
from labkit.course.phase3_multi_node.zero.given.optimizer_state import gathered_state, group_options, load_state
from labkit.course.phase3_multi_node.zero.given.sharding import Sharding
from labkit.course.phase3_multi_node.zero.given.unit_hooks import call_before_backward, cast, watch, within_backward
from labkit.course.phase3_multi_node.zero.given.units import (
    Unit,
    batch_norm_parameters,
    default_device,
    materialize,
    parameters_of_units,
    unit_modules,
)
from labkit.torch_versions.groups import run_after_backward


class ShardedModule(Sharding, nn.Module):
    """Base of `FullyShardedDataParallel`: it calls `gather`, `free` and `after_backward` for each unit.

    A unit's parameters are those of an item of the outermost lists of modules; the root has all others, and keeps them
    from the beginning of the forward pass to the end of the backward pass. Those of batch norms stay in the shards'
    dtype whatever `mixed_precision` says. See the subclass for the arguments.
    """

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup | None,
        mixed_precision: torch.dtype | None,
        cpu_offload: bool,
        prefetch: bool,
        hybrid: ProcessGroup | None,
    ) -> None:
        require_module(module, group, mixed_precision, hybrid)
        super().__init__()
        self.group, self.hybrid, self.dtype, self.prefetch = group, hybrid, mixed_precision, prefetch
        self.offload, self._groups = cpu_offload, [*([] if hybrid is None else [hybrid]), group]
        self.ranks = dist.get_world_size(group)
        self.replicas = self.ranks * (1 if hybrid is None else dist.get_world_size(hybrid))
        """Number of ranks whose gradients are averaged."""
        self.pending: list[Any] = []
        self.module = module
        self.units = [Unit("", module), *(Unit(name, part) for name, part in unit_modules(module).items())]
        """The root, and the units in the order of the module."""
        for unit, parameters in zip(self.units, parameters_of_units(module, self.units), strict=True):
            self._shard(unit, parameters)
        self.flats = [flat for unit in self.units for flat in unit.flats]
        for process_group in self._groups:
            broadcast_together(module.buffers(), process_group)
        self._path: list[Unit] = []
        """Units in the order of this forward pass."""
        self._last_path = self.units[1:]
        self._asked = False
        for unit in self.units[1:]:
            self._watch(unit)

    def _shard(self, unit: Unit, parameters: Sequence[nn.Parameter]) -> None:
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        keys = [names[parameter] for parameter in parameters]
        new = materialize(unit.module, parameters, default_device(self.group))
        key_of = dict(zip(new, keys, strict=True))
        precise = set() if self.dtype is None else batch_norm_parameters(unit.module)
        for same in alike(new, precise):
            whole = self.join([parameter.detach().reshape(-1) for parameter in same], self.ranks)
            for process_group in self._groups:
                dist.broadcast(whole, group_ranks(process_group)[0], process_group)
            dtype = self.dtype if whole.is_floating_point() and same[0] not in precise else None
            own = [key_of[parameter] for parameter in same]
            unit.flats.append(
                FlatParameters(
                    own, same, whole, self.group, keep=False, dtype=dtype, offload=self.offload, hybrid=self.hybrid
                )
            )

    def keep_in_files(self, folder: str | Path) -> None:
        """Move shards from host memory to files of this rank's own folder, `folder/RANK`, such as on NVMe drives.

        Raises ValueError unless they are in host memory (`cpu_offload`), OSError where no file can be written.
        """
        if not self.offload:
            raise ValueError("keep_in_files moves shards from host memory: cpu_offload must be True, got False")
        own = Path(folder) / os.environ.get("RANK", "0")
        own.mkdir(parents=True, exist_ok=True)
        for number, flat in enumerate(self.flats):
            flat.keep_in_file(own / f"shard_{number:05}.bin")

    # Calls around units -----------------------------------------------------------------------------------------------

    def gather(self, unit: Unit, following: Unit | None) -> None:
        """Called before the unit computes, and before its backward pass; the one of `following` comes next."""
        raise NotImplementedError

    def free(self, unit: Unit) -> None:
        """Called when the unit has computed; for the root only if no backward pass follows."""
        raise NotImplementedError

    def after_backward(self, unit: Unit) -> None:
        """Called after the unit's backward pass, at the latest at the end of the whole backward pass."""
        raise NotImplementedError

    def _require(self, unit: Unit, following: Unit | None) -> None:
        """Gather the unit. Raises RuntimeError if its parameters have no memory then: reading them would crash."""
        self.gather(unit, following)
        if not all(flat.has_memory() for flat in unit.flats):
            raise RuntimeError(
                f"gather returned before the parameters of unit {unit.name or 'root'!r} were there, and it computes "
                "now: they have no memory. start_gathering(unit) gives them theirs; free(unit) comes after computing"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        root, self._path, self._asked = self.units[0], [], False
        self._require(root, self._last_path[0] if self._last_path else None)
        args, kwargs = cast((args, kwargs), self.dtype)
        output = self.module(*args, **kwargs)
        path = self._last_path = self._path
        if not call_before_backward(lambda: self._before_backward(root, path, len(path)), output):
            self.free(root)
        return output

    def _watch(self, unit: Unit) -> None:
        def before() -> None:
            following = None
            if not within_backward():
                place = len(self._path)
                self._path.append(unit)
                if self._last_path[place : place + 1] == [unit]:
                    following = next(iter(self._last_path[place + 1 :]), None)
            self._require(unit, following)

        def after() -> Callable[[], None]:
            if within_backward():  # recomputed: its backward pass comes next
                return lambda: self._before_backward(unit, [], 0)
            self.free(unit)
            path, place = self._path, len(self._path) - 1
            return lambda: self._before_backward(unit, path, place)

        watch(unit.module, before, after, lambda: self.after_backward(unit))

    def _before_backward(self, unit: Unit, path: Sequence[Unit], place: int) -> None:
        if not self._asked:
            self._asked = True
            run_after_backward(self._finish)
        self._require(unit, path[place - 1] if place > 0 else None)

    def _finish(self) -> None:
        """End a backward pass, also for units without an input that requires a gradient."""
        self._asked = False
        for unit in self.units:
            if unit.gathering is not None or any(flat.has_gradient() for flat in unit.flats):
                self.after_backward(unit)
        self.wait_for_gradients()

    # Parameters and states --------------------------------------------------------------------------------------------

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's shards with names: an optimizer steps them. `parameters()` yields them, too."""
        for unit in self.units:
            for number, flat in enumerate(unit.flats):
                yield ".".join(part for part in (prefix, unit.name, f"flat{number or ''}") if part), flat.shard

    @contextmanager
    def gather_full_params(self) -> Iterator[nn.Module]:
        """Within the context, every rank's module has all parameters, in full precision. Changes reach the shards.

        Call it on every rank; ranks must make the same changes.
        """
        wholes = [flat.gather() for flat in self.flats]
        for flat, whole in zip(self.flats, wholes, strict=True):
            flat.point_to(whole)
        try:
            yield self.module
        finally:
            for flat, whole in zip(self.flats, wholes, strict=True):
                flat.shard.detach().copy_(flat.own_part(whole))
                flat.point_to(None)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # a plain dict
        """Return the module's state under its own names, in host memory, on every rank. Gathers unit by unit."""
        values: dict[Any, Tensor] = {}
        for flat in self.flats:
            parts = flat.split(flat.gather())
            values.update(zip(flat.parameters, map(to_host, parts), strict=True))
        own = self.module.state_dict(keep_vars=True)
        return {name: values[value] if value in values else value.detach().clone() for name, value in own.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state of the module, saved on any number of ranks or by the module itself, on every rank alike.

        Raises KeyError for a name that is missing in it.
        """
        own = self.module.state_dict(keep_vars=True)
        name_of: dict[Any, str] = {value: name for name, value in own.items()}
        for flat in self.flats:
            values = [state_dict[name_of[p]].to(flat.full.device, flat.shard.dtype) for p in flat.parameters]
            whole = self.join([value.reshape(-1) for value in values], self.ranks)
            flat.shard.detach().copy_(flat.own_part(whole))
        for name, buffer in self.module.named_buffers():
            if name in own:
                buffer.copy_(state_dict[name])

    def optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer of this module's parameters, by their names, on every rank."""
        names = {flat.shard: flat.keys for flat in self.flats}
        groups = [
            {**group_options(entry), "params": [key for shard in entry["params"] for key in names[shard]]}
            for entry in optimizer.param_groups
        ]
        return {"state": gathered_state(self.flats, optimizer), "param_groups": groups}

    def load_optimizer_state_dict(self, optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Load an `optimizer_state_dict`, saved on any number of ranks."""
        load_state(self.flats, optimizer, state_dict["state"], self.join)
        for entry, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
            entry.update(group_options(saved))
