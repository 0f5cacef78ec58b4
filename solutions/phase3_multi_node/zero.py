"""ZeRO: data parallelism without copies of what a rank does not need at the moment.

In data parallelism every rank holds all parameters, gradients and optimizer state. Each of these can be cut into a
shard for each rank instead (Rajbhandari et al. 2020): optimizer state in stage 1, gradients too in stage 2, parameters
too in stage 3, where a layer is gathered just before it computes and freed after it (Zhao et al. 2023, FSDP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.zero import given
from labkit.course.phase3_multi_node.zero.given import (
    FSDPTrainer,
    ZeROConfig,
    create_deepspeed_config,
    initialize_deepspeed,
)

__all__ = [
    "FSDPTrainer",
    "FullyShardedDataParallel",
    "ZeROConfig",
    "ZeroOptimizer",
    "create_deepspeed_config",
    "estimate_memory",
    "initialize_deepspeed",
]


def estimate_memory(
    num_parameters: float,
    num_gpus: int,
    stage: int,
    state_bytes: tuple[float, float, float] = (4, 4, 8),
    gpu_memory_gb: float = 80,
    offload_optimizer: bool = False,
    offload_params: bool = False,
) -> dict[str, float]:
    """Return the memory of parameters, gradients and optimizer state on each GPU, without activations and buffers.

    state_bytes: of these three, for each parameter; float32 and the two moments of Adam. In mixed precision (2, 2, 12).
    offload_optimizer: optimizer state is in host memory, with stages 2 and 3 gradients, too; offload_params: so are
    parameters, with stage 3 only.
    baseline_gb: in 1e9 bytes, at stage 0. zero_gb: at this stage. reduction_factor: the first over the second.
    max_parameters: as many as fit into `gpu_memory_gb`. The last two are infinite if nothing is left on the GPU.
    """
    given.require_memory(num_gpus, stage, state_bytes, num_parameters=num_parameters, gpu_memory_gb=gpu_memory_gb)
    # TODO 1. Which of the three are whole in this stage, which are shards, and which are not on the GPU at all?
    ### BEGIN SOLUTION
    before, after = sum(state_bytes), 0.0
    offloaded = offload_params, offload_optimizer, offload_optimizer
    for nbytes, first, offload in zip(state_bytes, (3, 2, 1), offloaded, strict=True):
        if stage < first:
            after += nbytes
        elif not offload:
            after += nbytes / num_gpus
    return {
        "baseline_gb": num_parameters * before / 1e9,
        "zero_gb": num_parameters * after / 1e9,
        "reduction_factor": before / after if after else float("inf"),
        "max_parameters": gpu_memory_gb * 1e9 // after if after else float("inf"),
    }
    ### END SOLUTION


class GradientShards(given.Sharding):
    """The part that all stages share: whole gradients leave, and the mean of this rank's shard comes back."""

    @staticmethod
    def join(tensors: Sequence[Tensor], ranks: int) -> Tensor:
        """Return 1-D tensors of one dtype one after another, then as few zeros as make `ranks` parts of equal size."""
        # TODO 2. This one, and the next three. `tensor.new_zeros(n)`; `torch.cat`; `nn.utils.clip_grads_with_norm_`.
        ### BEGIN SOLUTION
        padding = -sum(map(len, tensors)) % ranks
        return torch.cat([*tensors, tensors[0].new_zeros(padding)])
        ### END SOLUTION

    def reduce(self, flats: Sequence[given.FlatParameters]) -> None:
        """Begin to add up the gradients of `flats` over the group, so that each rank gets the sum of its shard.

        `flat.take_gradients()` returns them, [] if there are none to send, and frees them in the parameters. Does not
        wait for this, but for all that has begun before, so that the memory of one reduction is in use at a time.
        `self.pending`, a list, is yours.
        """
        ### BEGIN SOLUTION
        self.wait_for_gradients()
        for flat in flats:
            if gradients := flat.take_gradients():
                whole = self.join(gradients, self.ranks)
                del gradients
                part = whole.new_empty(len(whole) // self.ranks)
                work = given.reduce_scatter_single(part, whole, group=self.group, async_op=True)
                self.pending.append((flat, part, whole, work))
        ### END SOLUTION

    def wait_for_gradients(self) -> None:
        """Wait for what `reduce` has begun, and add the mean over `self.replicas` ranks: `flat.add_gradient(part)`.
        With `self.hybrid`, a group, the sum goes over the same shards of its ranks, too.
        """
        ### BEGIN SOLUTION
        for flat, part, _, work in self.pending:
            work.wait()
            if self.hybrid is not None:
                dist.all_reduce(part, group=self.hybrid)
            flat.add_gradient(part.div_(self.replicas))
        self.pending.clear()
        ### END SOLUTION

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients of shards so that the norm of all ranks' together is at most `max_norm`, before the step.

        Returns the norm before, a scalar, the same on all ranks. One all-reduce of one number; if gradients are in host
        memory, `given.on_device(x, flat)` is x where it can be sent.
        """
        given.require_max_norm(max_norm)
        self.finish_gradients()
        ### BEGIN SOLUTION
        shards = [flat.shard for flat in self.flats]
        norm = nn.utils.get_total_norm([shard.grad for shard in shards if shard.grad is not None])
        norm = given.on_device(norm, self.flats[0]).square()
        dist.all_reduce(norm, group=self.group)
        norm.sqrt_()
        nn.utils.clip_grads_with_norm_(shards, max_norm, norm)
        return norm
        ### END SOLUTION


class ZeroOptimizer(GradientShards, given.ShardedOptimizer):
    """Steps this rank's shard of the parameters with `optimizer_class(shards, **kwargs)`: stages 1 and 2.

    params: a module's parameters, or groups of them. All ranks start with the values of the group's first one. They are
    laid out in `self.buckets`, each of `bucket_cap_mb` MiB or more, in the order in which a backward pass reaches them.
    It leaves whole gradients in stage 1; `step` reduces them. In stage 2 a bucket's are reduced, and freed, as soon as
    they are complete. A parameter without a gradient counts as zero if others of its bucket have one; all ranks use the
    same ones. Learning rates can be scheduled. Raises ValueError for bad arguments, before anything is sent.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Optimizer],
        stage: int,
        group: ProcessGroup | None = None,
        bucket_cap_mb: float = 25,
        **kwargs: Any,
    ) -> None:
        super().__init__(params, optimizer_class, stage, group, bucket_cap_mb, kwargs)

    def gradient_arrived(self) -> None:
        """Reduce buckets that are complete, those with nothing in `bucket.missing`; in order, the same on all ranks.

        Called in stage 2 for each gradient. `self.launched` is the number of the bucket whose turn it is, also in the
        next backward pass: after the last one it is the first one's again.
        """
        # TODO 3. This one, and the next two.
        ### BEGIN SOLUTION
        while not self.buckets[self.launched].missing:
            self.reduce([self.buckets[self.launched]])
            self.launched = (self.launched + 1) % len(self.buckets)
        ### END SOLUTION

    def finish_gradients(self) -> None:
        """Reduce all gradients that are still whole, and wait. `self.launched` is 0 afterwards."""
        ### BEGIN SOLUTION
        for bucket in self.buckets:
            self.reduce([bucket])
        self.wait_for_gradients()
        self.launched = 0
        ### END SOLUTION

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step this rank's shards with `self.optimizer`; then every rank gets all of them, in `bucket.full`."""
        loss = given.no_grad_loss(closure)
        ### BEGIN SOLUTION
        self.finish_gradients()
        self.optimizer.step()
        for work in [
            given.all_gather_single(bucket.full, bucket.shard.detach(), group=self.group, async_op=True)
            for bucket in self.buckets
        ]:
            work.wait()
        ### END SOLUTION
        return loss


class FullyShardedDataParallel(GradientShards, given.ShardedModule):
    """Calls `module`, whose parameters are in shards: stage 3. Give `parameters()`, this rank's, to an optimizer.

    Units, the items of the outermost lists of modules, are gathered before they are used, forward and backward, and
    freed after it; the root, all other parameters, stays from the forward pass to the end of the backward pass. So two
    units are whole at a time: one computes, one arrives (`prefetch`). All ranks start with the values of the first one;
    a module on the meta device is initialized unit by unit. mixed_precision: dtype of computing and of messages, not of
    shards. cpu_offload: shards, their gradients, and so the optimizer, are in host memory. hybrid: a group of the ranks
    with the same shard in other groups: gradients are averaged over it, too. Raises ValueError before anything is sent.
    """

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup | None = None,
        mixed_precision: torch.dtype | None = None,
        cpu_offload: bool = False,
        prefetch: bool = True,
        hybrid: ProcessGroup | None = None,
    ) -> None:
        super().__init__(module, group, mixed_precision, cpu_offload, prefetch, hybrid)

    def start_gathering(self, unit: given.Unit) -> None:
        """Begin to gather the unit's parameters, unless that has begun: `flat.own()` is sent, `flat.full` is filled.

        `unit.allocate()` comes first. `unit.gathering` becomes the list of what is under way, or was.
        """
        # TODO 4. All of this class.
        ### BEGIN SOLUTION
        if unit.gathering is None:
            unit.allocate()
            unit.gathering = [
                given.all_gather_single(flat.full, flat.own(), group=self.group, async_op=True) for flat in unit.flats
            ]
        ### END SOLUTION

    def gather(self, unit: given.Unit, following: given.Unit | None) -> None:
        """Return when the unit's parameters are there; called before it computes, forward and backward.

        With `self.prefetch`, those of `following`, which probably computes next, are then on their way; None: nothing.
        """
        ### BEGIN SOLUTION
        self.start_gathering(unit)
        for work in unit.gathering or ():
            work.wait()
        if following is not None and self.prefetch:
            self.start_gathering(following)
        ### END SOLUTION

    def free(self, unit: given.Unit) -> None:
        """Free the unit's parameters, `unit.free()`; `unit.gathering` is None again. Called after it has computed."""
        ### BEGIN SOLUTION
        unit.free()
        unit.gathering = None
        ### END SOLUTION

    def after_backward(self, unit: given.Unit) -> None:
        """Free the unit's parameters, then reduce its gradients. Called after its backward pass."""
        ### BEGIN SOLUTION
        self.free(unit)
        self.reduce(unit.flats)
        ### END SOLUTION
