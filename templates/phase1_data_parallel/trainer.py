"""A data-parallel trainer: every rank has the whole model and a part of each batch; only gradients travel.

With n_r samples on rank r and g_r the gradient of their mean loss, the gradient over the whole batch is
sum(n_r * g_r) / sum(n_r). So each rank's message is [g_r, ..., loss_r, 1] times n_r: added up over the ranks and
divided by its last element it is the mean over the batch, however unevenly that was dealt out. (Torch's DDP takes the
mean of the ranks' means instead; Li et al. 2020.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.exercises import collectives

__all__ = ["REDUCTIONS", "DataParallelTrainer", "StepMetrics", "scaled_learning_rate"]

REDUCTIONS = ("per_parameter", "flat", "gather_scatter", "tree")


@dataclass(frozen=True)
class StepMetrics:
    """What one training step found and took; `loss` is the same on every rank."""

    loss: float
    """Mean over the samples of all ranks; NaN when no rank had one."""
    compute_seconds: float
    """Forward, backward, packing and the optimizer's step, on this rank."""
    communication_seconds: float
    """Adding up over the ranks; waiting for a slower rank is part of it."""


@dataclass(frozen=True)
class Message:
    """What a rank adds to the sum: one tensor, `flat`, and views of its parts. All of it is 0 at first."""

    flat: Tensor
    """1-D, at least float32, since a sum over many ranks needs more digits than bfloat16 has."""
    parameters: Sequence[nn.Parameter]
    """Those that are trained, tied ones once."""
    gradients: Sequence[Tensor]
    """For each of `parameters`, in its shape."""
    present: Tensor
    """For each of `parameters`: 1 where this rank has a gradient."""
    loss: Tensor
    """One element."""
    weight: Tensor
    """One element, the last of `flat`."""
    pieces: Sequence[Tensor]
    """All of `flat`, cut: a piece for each gradient, one for the rest."""


class DataParallelTrainer:
    """Trains `model` with all ranks of `group`, as one process would on all their batches together.

    model: its weights and buffers become those of the group's first rank. What layers note in buffers while training,
    such as BatchNorm, is each rank's own, as are its dropout masks. optimizer: of parameters of `model`, made in the
    same way on every rank. loss_fn(outputs, targets): the mean over the samples.
    reduction: how gradients are added up, one of `REDUCTIONS`; see `add_up`.
    Raises ValueError, before any message, when an argument cannot be used.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        group: ProcessGroup | None = None,
        reduction: str = "flat",
    ) -> None:
        _check_arguments(model, optimizer, group, reduction)
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.group, self.reduction = group, reduction
        self.first_rank = dist.get_process_group_ranks(group)[0]
        self.device = next(model.parameters()).device
        self.start_equal()

    def start_equal(self) -> None:
        """Make the model's weights and buffers on every rank those of the group's first rank.

        Ranks that begin apart stay apart: afterwards only gradients travel.
        """
        # TODO 1. `dist.broadcast` works in place, on a contiguous tensor: not every weight is one. Which tensors of a
        # model must be equal? Those that are not trained, too.
        # YOUR CODE HERE
        raise NotImplementedError()

    def add_up(self, message: Message) -> None:
        """Replace `message.flat` by its sum over the group, on every rank.

        per_parameter: an all-reduce for each of `message.pieces`. flat: one all-reduce. gather_scatter: one gather to
        the first rank, which adds, and one scatter of the sum. tree: `all_reduce_tree` of your exercise 02.
        """
        flat, group = message.flat, self.group
        # TODO 2. The four reductions. The first one to write is `flat`: one line. With gather and scatter only the
        # first rank has lists, one tensor for each rank of the group; the others say None.
        # YOUR CODE HERE
        raise NotImplementedError()

    def train_step(self, batch: tuple[Tensor, Tensor]) -> StepMetrics:
        """Take one optimizer step: the same on every rank, and the one that a single process would take.

        batch: this rank's inputs and targets, the samples along their first dimension; any number of them, or none.
        A parameter without a gradient on all ranks keeps `grad` None, so that the optimizer leaves it alone. When no
        rank has a sample, nothing is updated. Raises ValueError, before any message, for anything but such a pair.
        """
        inputs, targets = _pair(batch)
        samples = len(targets)
        began = self._now()
        message = self._message()

        # TODO 3. Clear old gradients. Let the model compute, loss and gradients, unless there is no sample here: the
        # mean over none is not a number. Fill in the message, all of it weighted with `samples`. Take the times
        # `packed` and `added_up` (`self._now()`) just before and after `self.add_up`. Then turn sums into means, and
        # hand each parameter its gradient, in its own dtype, or None if no rank had one. Last, the optimizer's step.
        # `loss`, a float, is the whole batch's.
        # YOUR CODE HERE
        raise NotImplementedError()

        communication = added_up - packed
        return StepMetrics(loss, self._now() - began - communication, communication)

    def _message(self) -> Message:
        """An empty one. Its views are part of `flat`: what is written into them is in the sum."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        dtype = reduce(torch.promote_types, (parameter.dtype for parameter in parameters), torch.float32)
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes) + len(sizes) + 2, dtype=dtype, device=self.device)
        pieces = flat.split([*sizes, len(sizes) + 2])
        gradients = [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=False)]
        present, loss, weight = pieces[-1].split([len(sizes), 1, 1])
        return Message(flat, parameters, gradients, present, loss, weight, pieces)

    def _now(self) -> float:
        """Seconds on this rank's clock, once its GPU has done what it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def scaled_learning_rate(
    learning_rate: float, global_batch_size: int, step: int, *, base_batch_size: int = 256, warmup_steps: int = 0
) -> float:
    """The learning rate of step `step`, counted from 0, for a larger batch (Goyal et al. 2017, sections 2.1 and 2.2).

    learning_rate: the right one for `base_batch_size` samples. With k times as many samples in the batches of all ranks
    together it is k times as large: reached in even steps, from `learning_rate` at step 0 to its full size at step
    `warmup_steps`. Raises ValueError when a size is not above 0, or a number of steps is below 0.
    """
    for name, size in (("global_batch_size", global_batch_size), ("base_batch_size", base_batch_size)):
        if size <= 0:
            raise ValueError(f"{name} must be above 0, got {size}")
    for name, count in (("step", step), ("warmup_steps", warmup_steps)):
        if count < 0:
            raise ValueError(f"{name} must be 0 or more, got {count}")
    # TODO 4. Which factor at step 0, and which from step `warmup_steps` on? Without a warm-up it is there at once.
    # YOUR CODE HERE
    raise NotImplementedError()


def _check_arguments(model: nn.Module, optimizer: Optimizer, group: ProcessGroup | None, reduction: str) -> None:
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ValueError(f"model must have a parameter that is trained, got {type(model).__name__} without one")
    if odd := [parameter.dtype for parameter in parameters if parameter.is_complex()]:
        raise ValueError(f"model must have real parameters, got {odd[0]}")
    if len(devices := {str(parameter.device) for parameter in parameters}) > 1:
        raise ValueError(f"model must be on one device, got {', '.join(sorted(devices))}")
    known = {id(parameter) for parameter in parameters}
    foreign = [p for entry in optimizer.param_groups for p in entry["params"] if id(p) not in known]
    if foreign:
        raise ValueError(f"optimizer must hold parameters of model only, got {len(foreign)} others")


def _pair(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs and targets, as many of the one as of the other."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        raise ValueError(f"batch must be a pair of tensors, inputs and targets, got {type(batch).__name__}")
    inputs, targets = batch
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets)):
        shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"batch must have as many inputs as targets, along the first dimension, got {shapes}")
    return inputs, targets
