"""Real training, for exercises whose code must train a model: a program for ranks for each task.

A program leaves these names to the code that follows it on each rank:

    model              the same weights on every rank
    OPTIMIZER, STEPS   such as (torch.optim.SGD, {"lr": 0.1}), and the number of steps
    loss_of(model, step, part, parts)
                       mean loss of part `part`, of `parts` equal ones, of the step's batch, which one process has whole
    result(model)      what was learned: accuracy or loss on held-out data

`parts` must divide the batch. `alone(task)` is the result of one process.
"""

from __future__ import annotations

import functools

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, local

MORE_RANKS = [pytest.param(ranks, marks=pytest.mark.exhaustive) for ranks in (1, 2)]
"""Numbers of ranks to train on besides 4."""

_BATCHES = """
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def part_of(step, size, part, parts):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(size, (BATCH,), generator=generator).chunk(parts)[part]

"""

DIGITS = (
    _BATCHES
    + """
from labkit.data import digits

BATCH, STEPS = 64, 300
OPTIMIZER = torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}
pictures, labels = digits("train").tensors
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 10)),
)


def loss_of(model, step, part, parts):
    chosen = part_of(step, len(pictures), part, parts)
    return F.cross_entropy(model(pictures[chosen]), labels[chosen])


def result(model):
    held_out, wanted = digits("test").tensors
    with torch.no_grad():
        return (model(held_out).argmax(1) == wanted).float().mean().item()

"""
)
"""A convolutional network on the digits: accuracy 0.98 or more."""

TEXT = (
    _BATCHES
    + """
from labkit.data import VOCAB, Windows, source_text
from labkit.models import GPT, GPTConfig

BATCH, STEPS, CONTEXT = 16, 300, 64
OPTIMIZER = torch.optim.Adam, {"lr": 0.01}
windows = Windows(source_text("train"), CONTEXT)
model = GPT(GPTConfig(layers=1, heads=4, width=64, vocab=VOCAB, context=CONTEXT))


def loss_on(model, windows, chosen):
    inputs, targets = (torch.stack(column) for column in zip(*(windows[index] for index in chosen)))
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def loss_of(model, step, part, parts):
    return loss_on(model, windows, part_of(step, len(windows), part, parts).tolist())


def held_out():
    windows = Windows(source_text("test"), CONTEXT)
    return windows, range(0, len(windows), len(windows) // 128)


def result(model):
    with torch.no_grad():
        return loss_on(model, *held_out()).item()

"""
)
"""A transformer on bytes of source text: loss 2.26 nats a byte on held-out text, where bigrams have 2.47."""

ACCURACY = 0.97
"""Least accuracy on the digits' test set."""

_ALONE = """
make, options = OPTIMIZER
optimizer = make(model.parameters(), **options)
for step in range(STEPS):
    optimizer.zero_grad()
    loss_of(model, step, 0, 1).backward()
    optimizer.step()
result(model)
"""

_BIGRAMS = """
tokens = source_text("train").long()
counts = torch.bincount(tokens[:-1] * VOCAB + tokens[1:], minlength=VOCAB**2).view(VOCAB, VOCAB) + 0.1
log_probabilities = (counts / counts.sum(1, keepdim=True)).log()
windows, chosen = held_out()
inputs, targets = (torch.stack(column) for column in zip(*(windows[index] for index in chosen)))
-log_probabilities[inputs, targets].mean().item()
"""


@functools.cache
def alone(program: str) -> float:
    """Return the result of one process without a process group."""
    return _only_value(program + _ALONE)


@functools.cache
def bigrams() -> float:
    """Return the loss, in nats per byte, of a table of pairs counted on the training text."""
    return _only_value(TEXT + _BIGRAMS)


def _only_value(source: str) -> float:
    (value,) = (
        local(nproc_per_node=1).run(Job(source=source, timeout=BROKEN_SECONDS, trace=False)).raise_if_failed().values
    )
    return float(value)
