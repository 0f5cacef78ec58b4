"""A data-parallel trainer: every rank has the whole model and a part of each batch; only gradients travel.

With n_r samples on rank r and g_r the gradient of their mean loss, the gradient over the whole batch is
sum(n_r * g_r) / sum(n_r). So each rank's message is [g_r, ..., loss_r, 1] times n_r: summed over the ranks and divided
by its last element, it is the mean over the batch, even if the ranks' shares differ. (Torch's DDP takes the mean of the
ranks' means instead; Li et al. 2020.)
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

from labkit.course.collective_arguments import group_ranks
from labkit.course.phase1_data_parallel.trainer.given.arguments import (
    inputs_and_targets,
    require_choice,
    require_schedule,
    require_trainable,
)
from labkit.exercises import collectives

__all__ = ["REDUCTIONS", "DataParallelTrainer", "StepMetrics", "scaled_learning_rate"]

REDUCTIONS = ("per_parameter", "flat", "gather_scatter", "tree")


@dataclass(frozen=True)
class StepMetrics:
    """Loss and times of one training step; `loss` is the same on every rank."""

    loss: float
    """Mean over the samples of all ranks; NaN when no rank had one."""
    compute_seconds: float
    """Forward, backward, packing and the optimizer's step, on this rank."""
    communication_seconds: float
    """Summing over the ranks, including the wait for a slower rank."""


@dataclass(frozen=True)
class Message:
    """A rank's contribution to the sum: one tensor, `flat`, initially 0, and views of its parts."""

    flat: Tensor
    """1-D, at least float32: a sum over many ranks needs more digits than bfloat16 has."""
    parameters: Sequence[nn.Parameter]
    """The trained ones, tied ones once."""
    gradients: Sequence[Tensor]
    """One for each of `parameters`, in its shape."""
    present: Tensor
    """One element for each of `parameters`: 1 where this rank has a gradient."""
    loss: Tensor
    weight: Tensor
    """One element each, the last two of `flat`."""
    pieces: Sequence[Tensor]
    """All of `flat`, in pieces: one for each gradient, one for the rest."""


class DataParallelTrainer:
    """Trains `model` with all ranks of `group`, as one process would on all their batches together.

    model: its weights and buffers become those of the group's first rank; during training each rank keeps its own
    buffers (BatchNorm's statistics) and dropout masks. optimizer: holds parameters of `model`, the same on every rank.
    loss_fn(outputs, targets): the mean over the samples. reduction: one of `REDUCTIONS`; see `add_up`.
    Raises ValueError, before any message is sent, for an argument that cannot be used.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        group: ProcessGroup | None = None,
        reduction: str = "flat",
    ) -> None:
        self.first_rank = group_ranks(group)[0]
        require_choice("reduction", reduction, REDUCTIONS)
        require_trainable(model, optimizer)
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.group, self.reduction = group, reduction
        self.device = next(model.parameters()).device
        self.start_equal()

    def start_equal(self) -> None:
        """Give every rank the weights and buffers of the group's first rank: later only gradients are sent."""
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
        A parameter that has a gradient on no rank keeps `grad` None; if no rank has a sample, nothing is updated.
        Raises ValueError, before any message is sent, for any other batch.
        """
        inputs, targets = inputs_and_targets(batch)
        samples = len(targets)
        began, message = self._now(), self._message()

        # TODO 3. Clear old gradients. Compute loss and gradients, unless there is no sample here: the mean over none is
        # not a number. Fill in the message, all of it weighted with `samples`. Take the times `packed` and `added_up`
        # (`self._now()`) just before and after `self.add_up`. Then turn sums into means: the whole batch's `loss`, a
        # float, and each parameter's gradient, in its own dtype, None if no rank had one. Last, the optimizer's step.
        # YOUR CODE HERE
        raise NotImplementedError()

        communication = added_up - packed
        return StepMetrics(loss, self._now() - began - communication, communication)

    def _message(self) -> Message:
        """Return an empty message: what is written into the views becomes part of `flat`, and of the sum."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        dtype = reduce(torch.promote_types, (parameter.dtype for parameter in parameters), torch.float32)
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes) + len(sizes) + 2, dtype=dtype, device=self.device)
        pieces = flat.split([*sizes, len(sizes) + 2])
        gradients = [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=False)]
        present, loss, weight = pieces[-1].split([len(sizes), 1, 1])
        return Message(flat, parameters, gradients, present, loss, weight, pieces)

    def _now(self) -> float:
        """Return seconds on this rank's clock, after its GPU has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def scaled_learning_rate(
    learning_rate: float, global_batch_size: int, step: int, *, base_batch_size: int = 256, warmup_steps: int = 0
) -> float:
    """Return the learning rate of step `step`, from 0, for a larger batch (Goyal et al. 2017, sections 2.1 and 2.2).

    With k times `base_batch_size`, for which `learning_rate` is right, it grows linearly from `learning_rate` at step 0
    to k times that at step `warmup_steps`. Raises ValueError when a size is not above 0, or a number of steps below 0.
    """
    require_schedule(global_batch_size, base_batch_size, step, warmup_steps)
    # TODO 4. Which factor at step 0, and which from step `warmup_steps` on? Without a warm-up, the latter at once.
    # YOUR CODE HERE
    raise NotImplementedError()
