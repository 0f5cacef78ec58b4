"""Data parallelism that hides its communication: gradients travel in buckets, while the backward pass goes on.

Every rank has the whole model and its own part of the batch. The backward pass finishes the last layers' gradients
first; they can be averaged over the ranks while earlier layers still compute. A message for each gradient would pay the
network's latency each time, and one message for all could leave only at the end. So gradients are collected in buckets,
and each full bucket leaves at once (Li et al. 2020, "PyTorch Distributed", section 3.2).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.ddp.given import BucketedModule, CheckpointFile, Training, broadcast_together, weak
from labkit.exercises import data_loader, process_group, trainer

__all__ = ["DDPCheckpointer", "DDPTrainer", "DistributedDataParallel"]


class DistributedDataParallel(BucketedModule):
    """Calls `module`; each backward pass leaves the mean of the ranks' gradients in `grad`, on every rank of `group`.

    All ranks use it alike. Parameters and buffers start as the group's first rank has them, by one broadcast.
    bucket_cap_mb: size of a bucket, in units of 2**20 bytes; the first one is full at 1. gradient_as_bucket_view: every
    `grad` is a part of its bucket, not a copy. find_unused_parameters: do not wait for parameters that the outputs do
    not depend on, on this rank or on any. broadcast_buffers: every forward pass begins with the first rank's buffers.
    Within `no_sync()`, and with gradients disabled, nothing is sent: `grad` adds up this rank's gradients, and the next
    pass outside averages their sum. Raises ValueError, before any message is sent, for an argument that cannot be used.
    """

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup | None = None,
        bucket_cap_mb: float = 25,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ) -> None:
        options = gradient_as_bucket_view, find_unused_parameters, broadcast_buffers
        super().__init__(module, group, bucket_cap_mb, *options)
        broadcast_together([*module.parameters(), *module.buffers()], group)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(weak(self.gradient_arrived))

    def assign(self, parameters: Sequence[nn.Parameter], cap: float, first_cap: float) -> list[list[nn.Parameter]]:
        """Cut the parameters into buckets, in their order; return the buckets in the order in which they are full.

        A bucket holds one dtype on one device. It is full, and takes no more, as soon as its gradients have `cap` bytes
        or more; the first of each dtype and device as soon as they have `first_cap`. Buckets that never become full
        come last, in the order of their first parameters. A parameter is not split.
        """
        # TODO 1. While you go through the parameters, one bucket is being filled for each pair of dtype and device. A
        # gradient has `parameter.numel() * parameter.element_size()` bytes.
        ### BEGIN SOLUTION
        full: list[list[nn.Parameter]] = []
        filling: dict[Any, list[nn.Parameter]] = {}
        room: dict[Any, float] = {}
        for parameter in parameters:
            kind = parameter.dtype, parameter.device
            filling.setdefault(kind, []).append(parameter)
            room[kind] = room.get(kind, first_cap) - parameter.numel() * parameter.element_size()
            if room[kind] <= 0:
                full.append(filling.pop(kind))
                room[kind] = cap
        return [*full, *filling.values()]
        ### END SOLUTION

    def collect(self, parameter: nn.Parameter) -> None:
        """Put `parameter.grad` into its bucket, zeros if it is None; then launch each full bucket whose turn has come.

        Called for each parameter when autograd has finished its gradient. Within `no_sync()` nothing is launched.
        Buckets leave in the order of `self.buckets`, the same on all ranks, whichever is full first: bucket i + 1 not
        before bucket i, and at once if it is full. Launching does not wait.
        """
        bucket = self.bucket_of[parameter]
        view = bucket.view(parameter)
        # TODO 2. `view` is the gradient's place in the bucket; with `self.as_view` it becomes `parameter.grad`, unless
        # that is None. If `self.synchronizing`: divide by the number of ranks as it gets there, unless there is a
        # `self.comm_hook`; take the parameter out of `bucket.missing`, a set; and launch `self.buckets[self.launched]`
        # while there is one and it misses nothing. To launch it, set its `pending` to what `self.comm_hook(bucket)`
        # returns, or else to what an all-reduce of its `buffer()` with `async_op=True` returns; add 1 to `launched`.
        ### BEGIN SOLUTION
        divisor = dist.get_world_size(self.group) if self.synchronizing and not self.comm_hook else 1
        if parameter.grad is None:
            view.zero_()
        else:
            torch.div(parameter.grad, divisor, out=view)
            if self.as_view:
                parameter.grad = view
        if not self.synchronizing:
            return
        bucket.missing.remove(parameter)
        while self.launched < len(self.buckets) and not self.buckets[self.launched].missing:
            full = self.buckets[self.launched]
            if self.comm_hook:
                full.pending = self.comm_hook(full)
            else:
                full.pending = dist.all_reduce(full.buffer(), group=self.group, async_op=True)
            self.launched += 1
        ### END SOLUTION

    def finish_gradient_synchronization(self) -> None:
        """Return when each `grad` is the mean over the ranks; if nothing was begun, at once.

        Called when a backward pass ends. A gradient that some ranks do not have counts as zero there; one that no rank
        has stays None. Call it yourself on a rank whose loss depends on no parameter: autograd calls nothing there.
        Raises RuntimeError if gradients are missing, unless `find_unused_parameters`.
        """
        if not self.expecting:
            return
        late = self.late()
        # TODO 3. Collect the late ones: they have no gradient on this rank, but others wait for their buckets.
        # `self.present()` is the set of parameters that have a gradient on some rank. Then, for each bucket, in order:
        # `bucket.wait()`, and each parameter that is present gets what is now in `bucket.view(parameter)`: with
        # `self.as_view` the view is its `grad`, otherwise a copy.
        ### BEGIN SOLUTION
        for parameter in late:
            self.collect(parameter)
        present = self.present()
        for bucket in self.buckets:
            bucket.wait()
            for parameter in present.intersection(bucket.parameters()):
                view = bucket.view(parameter)
                if self.as_view:
                    parameter.grad = view
                elif parameter.grad is None:
                    parameter.grad = view.clone()
                else:
                    parameter.grad.copy_(view)
        ### END SOLUTION
        self.start_over()


class DDPTrainer(Training):
    """Trains a model on all ranks: exercises 01, 03 and 04 say how ranks meet, who has which samples, and how fast.

    config: exercise 01's, with options of DistributedDataParallel. batch_size: each rank's. learning_rate: the one for
    `base_batch_size` samples; in `warmup_steps` steps it grows to the one for all ranks' (Goyal et al. 2017).
    """

    all_reduce_metrics = staticmethod(process_group.all_reduce_metrics)
    barrier = staticmethod(process_group.barrier)
    cleanup = staticmethod(process_group.cleanup)
    is_main_process = staticmethod(process_group.is_main_process)

    def setup_distributed(self) -> torch.device:
        """Join the process group; return the device for this rank's tensors."""
        self.device = process_group.setup_distributed(self.config)
        return self.device

    def wrap_model(self, model: nn.Module, make_optimizer: Callable[..., Optimizer]) -> DistributedDataParallel:
        """Move the model to the device and wrap it; make its optimizer, `make_optimizer(parameters, lr=...)`."""
        self.model = wrapped = DistributedDataParallel(model.to(self.device), **self.ddp_options)
        self.optimizer = make_optimizer(wrapped.parameters(), lr=self.learning_rate)
        return wrapped

    def create_distributed_sampler(self, dataset_size: int, shuffle: bool = True, seed: int = 0) -> Any:
        """Return the sampler of this rank's part of the data, which is as long as the others'."""
        ranks = self.config.world_size, self.config.rank
        return data_loader.ShardedSampler(dataset_size, *ranks, shuffle=shuffle, seed=seed, drop_last=True)

    def learning_rate_now(self) -> float:
        """Return the learning rate of step number `self.steps`."""
        step = self.global_batch_size, self.steps
        return float(trainer.scaled_learning_rate(self.learning_rate, *step, **self.schedule))


class DDPCheckpointer(CheckpointFile):
    """Saves and loads model and optimizer: `save(model, optimizer, **more)` and `load(model, optimizer)`."""

    def write(self, state: dict[str, Any]) -> None:
        """Write the state to `self.path`: whenever the machine fails, that is the old file or the new one, whole.

        Only the first rank calls it. No other file is left in the folder, not even if `torch.save` raises an exception.
        """
        # TODO 4. Write another file in the same folder, and let it take the other's name by `os.replace` when all of it
        # is on the disk: `file.flush()` empties Python's memory, `os.fsync(file.fileno())` the operating system's.
        ### BEGIN SOLUTION
        temporary = f"{self.path}.{os.getpid()}"
        with open(temporary, "wb") as file:
            try:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, self.path)
            except BaseException:
                os.remove(temporary)
                raise
        ### END SOLUTION
