"""Base of exercise 15's `ZeroOptimizer`: buckets, of which each rank optimizes its shard, and a state for any ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.arguments import positive, require
from labkit.course.collective_arguments import group_ranks
from labkit.course.phase3_multi_node.ddp.given import broadcast_together, weak
from labkit.course.phase3_multi_node.zero.given.arguments import parameter_groups, require_stage
from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters, alike
from labkit.course.phase3_multi_node.zero.given.optimizer_state import gathered_state, group_options, load_state
from labkit.course.phase3_multi_node.zero.given.sharding import Sharding

MB = 1 << 20


class ShardedOptimizer(Sharding, Optimizer):
    """Base of `ZeroOptimizer`. See there for the arguments."""

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Optimizer],
        stage: int,
        group: ProcessGroup | None,
        bucket_cap_mb: float,
        options: Mapping[str, Any],
    ) -> None:
        first = group_ranks(group)[0]
        require_stage(stage, 1, 2)
        require("bucket_cap_mb", bucket_cap_mb, positive)
        groups = parameter_groups(params)
        self.stage, self.group = stage, group
        self.ranks = self.replicas = dist.get_world_size(group)
        self.pending: list[Any] = []
        self.buckets: list[FlatParameters] = []
        """Trained parameters, in the order in which a backward pass reaches them: the last ones first."""
        self.bucket_of: dict[nn.Parameter, FlatParameters] = {}
        self._all: list[nn.Parameter] = []
        self._numbers: list[list[int]] = []
        """Numbers of the parameters of each group, frozen ones too, as in the state of an optimizer without shards."""
        for entry in groups:
            start = len(self._all)
            self._all += entry["params"]
            self._numbers.append([*range(start, len(self._all))])
        broadcast_together([parameter for parameter in self._all if not parameter.requires_grad], group)
        number = {parameter: place for place, parameter in enumerate(self._all)}
        for entry in groups:
            cut = _cut([p for p in reversed(entry["params"]) if p.requires_grad], bucket_cap_mb * MB)
            buckets = []
            for parameters in cut:
                whole = self.join([parameter.detach().reshape(-1) for parameter in parameters], self.ranks)
                dist.broadcast(whole, first, group)
                keys = [number[parameter] for parameter in parameters]
                buckets.append(FlatParameters(keys, parameters, whole, group, keep=True))
            entry["params"] = [bucket.shard for bucket in buckets]
            self.buckets += buckets
        self.bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self.flats = self.buckets
        self.launched = 0
        """Number of the bucket that is reduced next in a backward pass of stage 2."""
        self.optimizer = optimizer_class(groups, **options)
        """Steps the shards of this rank."""
        # the step of `self.optimizer` calls the step hooks, also those that label memory: this one must not
        vars(type(self))["step"].hooked = True
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        # one list and one state for both, so that a learning rate that is scheduled here counts there
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        if stage == 2:
            for parameter in self.bucket_of:
                parameter.register_post_accumulate_grad_hook(weak(self._arrived))

    def _arrived(self, parameter: nn.Parameter) -> None:
        self.bucket_of[parameter].missing.discard(parameter)
        self.gradient_arrived()

    def gradient_arrived(self) -> None:
        """Called in stage 2 when a gradient is complete; its parameter is then in no bucket's `missing`."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients: of parameters and shards. They are set to None."""
        for parameter in self._all:
            parameter.grad = None
        for bucket in self.buckets:
            bucket.shard.grad = None
            bucket.missing = set(bucket.parameters)
        self.launched = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, as one optimizer without shards has it, on every rank, in host memory.

        Call it on every rank: one all-gather for each bucket and tensor of its state.
        """
        groups = [
            {**group_options(entry), "params": numbers}
            for entry, numbers in zip(self.param_groups, self._numbers, strict=True)
        ]
        return {"state": gathered_state(self.buckets, self.optimizer), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state that was saved on any number of ranks, or by an optimizer that is not sharded."""
        load_state(self.buckets, self.optimizer, state_dict["state"], self.join)
        for entry, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            entry.update(group_options(saved))


def _cut(parameters: Sequence[nn.Parameter], cap: float) -> list[list[nn.Parameter]]:
    """Cut the parameters into buckets, each full as soon as it has `cap` bytes or more; dtypes and devices apart."""
    buckets: list[list[nn.Parameter]] = []
    for same in alike(parameters):
        filling: list[nn.Parameter] = []
        for parameter in same:
            filling.append(parameter)
            if sum(p.numel() * p.element_size() for p in filling) >= cap:
                buckets.append(filling)
                filling = []
        if filling:
            buckets.append(filling)
    return buckets
