"""Source text, byte by byte: the batch of each step, held-out windows, and the trigram model to be beaten."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.data.source_text import VOCAB, source_bytes, source_text

SMOOTHING = 10.0
"""Weight of the shorter context in the trigram model: the best of 1, 3 and 10 on the held-out text."""


def tokens_of_step(plan: Any, step: int) -> Tensor:
    """Return the global batch of a step, (batch, sequence + 1) int64: windows of the text at random places.

    The step and the plan's seed alone decide, so it is the same on all ranks, and after a restart.
    """
    text = source_bytes()[: plan.train_bytes]
    length, draw = plan.model.sequence + 1, random.Random(f"{plan.seed} {step}")
    starts = [draw.randrange(len(text) - length + 1) for _ in range(plan.layout.batch)]
    return torch.tensor([list(text[start : start + length]) for start in starts])


def windows(length: int, count: int) -> Tensor:
    """Return `count` windows spread over the held-out text, (count, length + 1) int64; they overlap by one token."""
    text = source_text("test")
    every = (len(text) - length - 1) // max(1, count - 1)
    return torch.stack([text[place * every : place * every + length + 1] for place in range(count)]).long()


@torch.no_grad()
def held_out_loss(model: Any, tokens: Tensor) -> float:
    """Return the mean loss of a whole model on windows (count, length + 1), in nats for each byte."""
    total = 0.0
    for some in tokens.split(64):
        logits = model(some[:, :-1]).flatten(0, 1)
        total += float(F.cross_entropy(logits, some[:, 1:].flatten(), reduction="sum"))
    return total / tokens[:, 1:].numel()


def trigram_loss(tokens: Tensor, train_bytes: int | None = None) -> float:
    """Return the loss of a trigram model on the same windows, in nats: it has counted which byte follows two others.

    It is smoothed with what follows one, and that with how often bytes occur (Dirichlet priors). Each window's first
    token is predicted from what comes before, so the model knows two bytes where a GPT knows one: it has no handicap.
    """
    text = source_text()[:train_bytes].long()
    three = text[:-2] * VOCAB**2 + text[1:-1] * VOCAB + text[2:]
    counts3 = torch.bincount(three, minlength=VOCAB**3).view(VOCAB, VOCAB, VOCAB).double()
    counts2 = torch.bincount(text[:-1] * VOCAB + text[1:], minlength=VOCAB**2).view(VOCAB, VOCAB).double()
    share1 = (torch.bincount(text, minlength=VOCAB).double() + 1) / (len(text) + VOCAB)
    share2 = (counts2 + SMOOTHING * share1) / (counts2.sum(-1, keepdim=True) + SMOOTHING)
    share3 = (counts3 + SMOOTHING * share2) / (counts3.sum(-1, keepdim=True) + SMOOTHING)
    first, second, third = tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]
    return float(-share3[first, second, third].log().mean())
