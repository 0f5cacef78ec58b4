"""Gradient accumulation: the step of a large batch with the memory of a small one, and one message for all of it.

A window is `steps` microbatches on each rank of the group. With n_i samples in a microbatch and g_i the gradient of
their mean loss, the gradient over the whole window, on all ranks, is sum(n_i * g_i) / sum(n_i). Each rank adds up its
own part of both sums while it computes; the ranks' parts are added up once, when the window ends. So activations are
those of one microbatch, and messages are `steps` times rarer (Ott et al. 2018, "Scaling Neural Machine Translation").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase2_advanced.gradient_accumulation.given.arguments import check_accumulator, check_loss

__all__ = ["GradientAccumulator"]


@dataclass(frozen=True)
class Message:
    """What a rank adds to the sum at a window's end: one tensor, `flat`, and views of its parts. All 0 at first."""

    flat: Tensor
    """1-D, at least float32, since a sum over many ranks needs more digits than bfloat16 has."""
    parameters: Sequence[nn.Parameter]
    """Those that are trained, tied ones once."""
    gradient: Tensor
    """The first part of `flat`: the gradients of all `parameters`, one after the other."""
    parts: Sequence[Tensor]
    """For each of `parameters` its part of `gradient`, in its shape."""
    present: Tensor
    """For each of `parameters`: 1 where this rank has a gradient."""
    samples: Tensor
    """One element, the last of `flat`."""


class GradientAccumulator:
    """Takes one optimizer step for each window of `steps` microbatches, as one process would on all their samples.

    On every rank of `group`, in the same order:

        for inputs, targets in microbatches:
            accumulator.backward(loss_fn(model(inputs), targets), samples=len(targets))
            accumulator.step()
        accumulator.flush()

    model: its weights must be equal on all ranks already; nothing is sent except at the end of a window. optimizer: of
    parameters of `model`, made in the same way on every rank; its learning rate stays yours. max_norm: the largest norm
    that the gradient of a window may have, all parameters together; None: no limit.
    Raises ValueError when an argument cannot be used.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        steps: int,
        max_norm: float | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        check_accumulator(model, optimizer, steps, max_norm, group)
        self.model, self.optimizer, self.steps = model, optimizer, steps
        self.max_norm, self.group = max_norm, group
        self.microbatches = 0
        """Of this window so far, as `step` has counted them: the same on every rank."""
        self.samples = 0.0
        """Of this window so far, on this rank."""
        self.model.zero_grad()

    def backward(self, loss: Tensor, samples: float = 1) -> Tensor:
        """Add the gradient of one microbatch, `samples` times, to the parameters' `grad`. Nothing is sent.

        loss: one element, the mean over the microbatch. samples: how many it has; left out, all microbatches count
        alike. With 0 samples nothing is added, whatever the loss. Returns the loss without its graph, which is freed.
        Raises ValueError for a loss that is not one number with a graph, and for samples below 0.
        """
        check_loss(loss, samples)
        # TODO 1. Autograd adds to a `grad` that is there already. How does a microbatch count as often as it has
        # samples? The window's end has to know how many there were.
        ### BEGIN SOLUTION
        if samples:
            (loss * samples).backward()
            self.samples += samples
        return loss.detach()
        ### END SOLUTION

    def step(self) -> bool:
        """End a microbatch, and the window with it if it is the last of `steps`. Returns True if the optimizer stepped.

        Call it equally often on every rank, even where a microbatch had no sample and `backward` was not called.
        """
        # TODO 2. Count this microbatch in `self.microbatches`. `flush`, which ends a window, is the next method.
        ### BEGIN SOLUTION
        self.microbatches += 1
        return self.microbatches == self.steps and self.flush()
        ### END SOLUTION

    def flush(self) -> bool:
        """End the window now, however many microbatches it has. Returns True if the optimizer stepped.

        The optimizer sees the gradient of the mean over the window's samples, of all ranks, clipped to `max_norm`. A
        parameter that has a gradient on no rank keeps `grad` None, so that the optimizer leaves it alone. Where the
        gradient is not finite, or no rank had a sample, nothing is updated, on any rank. Afterwards the next window
        begins, without gradients. If `step` was not called since the last one ended, nothing is done and nothing sent.
        """
        if self.microbatches == 0:
            return False
        message = self._message()

        # TODO 3. Write this rank's part into the message, and add it up over the group: one all-reduce. `None` is not
        # a gradient. Then divide, so that `message.gradient` is the mean's, and let `norm` be its norm, a float.
        ### BEGIN SOLUTION
        for parameter, part in zip(message.parameters, message.parts, strict=True):
            if parameter.grad is not None:
                part.copy_(parameter.grad)
        message.present.copy_(torch.tensor([parameter.grad is not None for parameter in message.parameters]))
        message.samples.fill_(self.samples)
        dist.all_reduce(message.flat, group=self.group)
        message.gradient.div_(message.samples)
        norm = message.gradient.norm().item()
        ### END SOLUTION

        # TODO 4. If the norm is finite: clip (scale `message.gradient` so that its norm is at most `max_norm`), hand
        # each parameter its gradient, in its own dtype, or None if no rank had one, and let the optimizer step. Then,
        # in any case, begin the next window. All ranks have the same numbers here, so no rank has to ask another.
        ### BEGIN SOLUTION
        finite = math.isfinite(norm)  # which the mean over no samples is not, either
        if finite:
            if self.max_norm is not None and norm > self.max_norm:
                message.gradient.mul_(self.max_norm / norm)
            for parameter, part, share in zip(message.parameters, message.parts, message.present.tolist(), strict=True):
                parameter.grad = part.to(parameter.dtype) if share else None
            self.optimizer.step()
        self.model.zero_grad()
        self.microbatches, self.samples = 0, 0.0
        return finite
        ### END SOLUTION

    def _message(self) -> Message:
        """Return an empty message: what is written into the views becomes part of `flat`, and of the sum."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        dtype = reduce(torch.promote_types, (parameter.dtype for parameter in parameters), torch.float32)
        sizes = [parameter.numel() for parameter in parameters]
        device = next(self.model.parameters()).device
        flat = torch.zeros(sum(sizes) + len(sizes) + 1, dtype=dtype, device=device)
        gradient, present, samples = flat.split([sum(sizes), len(sizes), 1])
        parts = [part.view(p.shape) for part, p in zip(gradient.split(sizes), parameters, strict=True)]
        return Message(flat, parameters, gradient, parts, present, samples)
