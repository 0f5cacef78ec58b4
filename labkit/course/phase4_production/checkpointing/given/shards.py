"""The state of exercise 15's shards, under the names of the whole parameters: each rank has a range of each.

With hybrid sharding, replicas of a shard have the same range.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters
from labkit.course.phase3_multi_node.zero.given.optimizer_state import group_options
from labkit.course.phase3_multi_node.zero.given.sharded_module import ShardedModule
from labkit.course.phase3_multi_node.zero.given.sharded_optimizer import ShardedOptimizer


@dataclass(frozen=True)
class Shard:
    """One parameter's tensor, such as its values or a moment of Adam, of which each rank has a range."""

    flat: FlatParameters
    number: int
    """Number of the parameter in `flat`."""
    value: Tensor
    """This rank's part of all parameters of `flat`, (padded numel / N,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.flat.parameters[self.number].shape)

    def own_range(self) -> tuple[int, int, int]:
        """Return this rank's range of the parameter's elements, start and stop, and where it begins in `value`."""
        begin, rank = sum(self.flat.sizes[: self.number]), dist.get_rank(self.flat.group)
        low, high = rank * len(self.value), (rank + 1) * len(self.value)
        start = min(max(low - begin, 0), self.flat.sizes[self.number])
        stop = min(max(high - begin, start), self.flat.sizes[self.number])
        return start, stop, begin + start - low

    def written_range(self) -> tuple[int, int, int]:
        """Return the part of `own_range` that this rank writes: with hybrid sharding each replica has its share."""
        start, stop, at = self.own_range()
        if self.flat.hybrid is None:
            return start, stop, at
        rank, replicas = dist.get_rank(self.flat.hybrid), dist.get_world_size(self.flat.hybrid)
        first, last = (start + (stop - start) * part // replicas for part in (rank, rank + 1))
        return first, last, at + first - start

    def gathered(self) -> Tensor:
        """Return the whole tensor: all ranks call it."""
        return self.flat.split(self.flat.gather(self.value))[self.number]


class ShardedState:
    """Finds the shards among components: of `ZeroOptimizer`, of `FullyShardedDataParallel`, and of its optimizer."""

    def __init__(self, components: Mapping[str, Any]) -> None:
        self._modules = [item for item in components.values() if isinstance(item, ShardedModule)]

    def flats(self, component: Any) -> Sequence[FlatParameters]:
        """Return the flat parameters whose shards the component has; none if it has no shards."""
        if isinstance(component, ShardedOptimizer):
            return component.buckets
        if isinstance(component, ShardedModule):
            return component.flats
        if isinstance(component, Optimizer):
            own = {id(parameter) for group in component.param_groups for parameter in group["params"]}
            return [flat for module in self._modules for flat in module.flats if id(flat.shard) in own]
        return []

    def state(self, component: Any) -> dict[str, Any]:
        """Return the state of a component that has shards, with a `Shard` for each tensor that is sharded."""
        flats = self.flats(component)
        if isinstance(component, ShardedModule):
            shards = {id(p): Shard(f, n, f.shard.detach()) for f in flats for n, p in enumerate(f.parameters)}
            own = component.module.state_dict(keep_vars=True)
            return {name: shards.get(id(value), value) for name, value in own.items()}
        optimizer = component.optimizer if isinstance(component, ShardedOptimizer) else component
        state: dict[Hashable, dict[str, Any]] = {key: {} for flat in flats for key in flat.keys}
        for flat in flats:
            for name, value in optimizer.state.get(flat.shard, {}).items():
                sharded = isinstance(value, Tensor) and value.shape == flat.shard.shape
                for number, key in enumerate(flat.keys):
                    state[key][name] = Shard(flat, number, value.detach()) if sharded else value
        return {"state": {k: v for k, v in state.items() if v}, "param_groups": [*_groups(component, flats)]}


def _groups(optimizer: Any, flats: Sequence[FlatParameters]) -> Iterator[dict[str, Any]]:
    keys = {id(flat.shard): flat.keys for flat in flats}
    for group in optimizer.param_groups:
        yield {**group_options(group), "params": [key for shard in group["params"] for key in keys[id(shard)]]}
