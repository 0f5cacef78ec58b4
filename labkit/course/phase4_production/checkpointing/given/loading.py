"""Loading a checkpoint: it is read into host memory, then put into components, on any number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.course.phase3_multi_node.zero.given.optimizer_state import group_options
from labkit.course.phase3_multi_node.zero.given.sharded_module import ShardedModule
from labkit.course.phase3_multi_node.zero.given.sharded_optimizer import ShardedOptimizer
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.checkpointing.given.manifest import read_manifest, read_piece
from labkit.course.phase4_production.checkpointing.given.plain_state import TensorEntry, decode
from labkit.course.phase4_production.checkpointing.given.shards import Shard, ShardedState
from labkit.course.phase4_production.checkpointing.given.storage import Storage


class LoadedState:
    """This rank's part of a checkpoint, read and verified: `apply()` puts it into the components.

    Raises `CheckpointError` if anything of it is missing, torn or corrupt.
    """

    def __init__(self, storage: Storage, folder: str, components: Mapping[str, Any], rank: int) -> None:
        manifest = read_manifest(storage, folder)
        reader = Reader(storage, folder, manifest)
        sharded = ShardedState(components)
        own = manifest["ranks"][rank]["own"] if rank < len(manifest["ranks"]) else {}
        self.step: int = manifest["step"]
        self._changes: list[Callable[[], Any]] = []
        for name, component in components.items():
            if getattr(component, "of_each_rank", False):
                if name in own:  # a rank that did not exist then keeps its own state
                    self._changes.append(_loading(component, decode(own[name], reader.whole)))
            elif name not in manifest["tree"]:
                raise CheckpointError(f"{folder} has no component {name!r}, only {', '.join(manifest['tree'])}")
            elif flats := sharded.flats(component):
                self._changes += _into_shards(component, flats, manifest["tree"][name], reader)
            else:
                self._changes.append(_loading(component, decode(manifest["tree"][name], reader.whole)))

    def apply(self) -> int:
        """Put the state into the components, once, and keep no copy of it; return its step."""
        changes, self._changes = self._changes, []
        changes.reverse()
        with torch.no_grad():
            while changes:
                changes.pop()()
        return self.step


class Reader:
    """Ranges of tensors from the files of a checkpoint, each with its checksum verified."""

    def __init__(self, storage: Storage, folder: str, manifest: Mapping[str, Any]) -> None:
        self._storage = storage
        self._pieces: defaultdict[str, list[Any]] = defaultdict(list)
        for entry in manifest["ranks"]:
            for key, *piece in entry["pieces"]:
                self._pieces[key].append((f"{folder}/{entry['file']}", *piece))

    def whole(self, entry: TensorEntry) -> Tensor:
        """Return a whole tensor."""
        return self.range(entry, 0, torch.Size(entry.shape).numel()).reshape(entry.shape)

    def range(self, entry: TensorEntry, start: int, stop: int) -> Tensor:
        """Return elements `start` to `stop` (excluded) of a flattened tensor, (stop - start,)."""
        values, missing = torch.empty(stop - start, dtype=entry.dtype), stop - start
        for path, first, last, offset, nbytes, checksum in self._pieces[entry.key]:
            low, high = max(first, start), min(last, stop)
            if low >= high:
                continue
            missing -= high - low
            data = read_piece(self._storage, path, offset, nbytes, checksum)
            if checksum is not None:
                piece = torch.frombuffer(data, dtype=entry.dtype)
                if low == start and high == stop:
                    return piece[low - first : high - first]
                values[low - start : high - start] = piece[low - first : high - first]
        if missing:
            raise CheckpointError(f"{entry.key} is not complete: {missing} of its elements are in no file")
        return values


def _loading(component: Any, state: Any) -> Callable[[], Any]:
    if isinstance(component, Tensor):
        return partial(component.detach().copy_, state)
    return partial(component.load_state_dict, state)


def _into_shards(component: Any, flats: Any, tree: Any, reader: Reader) -> list[Callable[[], Any]]:
    state = decode(tree, lambda entry: entry)
    if isinstance(component, ShardedModule):
        return _into_module(component, state, reader)
    optimizer = component.optimizer if isinstance(component, ShardedOptimizer) else component
    changes: list[Callable[[], Any]] = [optimizer.state.clear]
    for flat in flats:
        entries = [state["state"].get(key, {}) for key in flat.keys]
        for name, first in entries[0].items():
            values = [entry[name] for entry in entries]
            if _is_sharded(name, values, flat):
                value = torch.zeros(flat.shard.shape, dtype=first.dtype)
                _fill(value, flat, values, reader)
            else:
                value = reader.whole(first) if isinstance(first, TensorEntry) else first
            changes.append(partial(_set_state, optimizer, flat, name, value))
    for group, saved in zip(component.param_groups, state["param_groups"], strict=True):
        changes.append(partial(group.update, group_options(saved)))
    return changes


def _into_module(module: ShardedModule, state: Any, reader: Reader) -> list[Callable[[], Any]]:
    own = module.module.state_dict(keep_vars=True)
    if missing := own.keys() - state.keys():
        raise CheckpointError(f"the checkpoint's module has no {', '.join(sorted(missing))}")
    name_of = {id(value): name for name, value in own.items()}
    changes: list[Callable[[], Any]] = []
    for flat in module.flats:
        value = torch.zeros(flat.shard.shape, dtype=flat.shard.dtype)
        _fill(value, flat, [state[name_of[id(parameter)]] for parameter in flat.parameters], reader)
        changes.append(partial(flat.shard.detach().copy_, value))
    for name, buffer in module.module.named_buffers():
        if name in own:
            changes.append(partial(buffer.copy_, reader.whole(state[name])))
    return changes


def _fill(value: Tensor, flat: Any, entries: list[TensorEntry], reader: Reader) -> None:
    for number, entry in enumerate(entries):
        start, stop, at = Shard(flat, number, value).own_range()
        if stop > start:
            value[at : at + stop - start] = reader.range(entry, start, stop)


def _is_sharded(name: str, values: list[Any], flat: Any) -> bool:
    """Return whether a tensor of an optimizer's state has an element for each element of the parameter."""
    alike = all(isinstance(v, TensorEntry) and v.shape == p.shape for v, p in zip(values, flat.parameters, strict=True))
    return alike and (name != "step" or any(parameter.dim() for parameter in flat.parameters))


def _set_state(optimizer: Any, flat: Any, name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.shape == flat.shard.shape:
        value = value.to(flat.shard.device)
    optimizer.state[flat.shard][name] = value
