"""Parts of the training loop: batches without side effects on random numbers, equal starts, gradients, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together


class RepeatedCrash(RuntimeError):
    """The last two attempts failed at the same step: a third one would, too. Raised on all ranks."""


def batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the loader's batches; starting to iterate draws no random number of this process.

    A DataLoader draws a seed for its workers each time it is iterated. A training that resumes within an epoch iterates
    once more than one that was never interrupted: without this, its dropout masks would be others.
    """
    with torch.random.fork_rng(devices=[]):
        iterator = iter(loader)
    yield from iterator


def start_equal(model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0."""
    broadcast_together((*model.parameters(), *model.buffers()))


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the `grad` of each trained parameter; None is replaced by zeros."""
    grads = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
    return grads
