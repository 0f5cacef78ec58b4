"""Source text, byte by byte: the batch of each step, held-out windows, and the trigram model to be beaten."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.data.source_text import VOCAB, source_bytes, source_text


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
    """Return the mean loss of a whole model on windows (count, length + 1), in nats for each byte.

    The first two bytes of a window are given: a trigram model cannot predict them.
    """
    total = 0.0
    for part in tokens.split(64):
        logits = model(part[:, :-1])[:, 1:].flatten(0, 1)
        total += float(F.cross_entropy(logits, part[:, 2:].flatten(), reduction="sum"))
    return total / tokens[:, 2:].numel()


def trigram_loss(tokens: Tensor, read: Tensor, prior: float | None = None) -> float:
    """Return a trigram model's loss on the same bytes of windows, in nats: it counts which byte follows two others.

    read: windows that it has counted, (count, length + 1). prior: None for one added to each count (Laplace); else what
    follows one byte, in turn smoothed with how often bytes occur, counts as so many observations (Dirichlet).
    """
    two, following = read[:, :-2] * VOCAB + read[:, 1:-1], read[:, 2:]
    counts = torch.bincount((two * VOCAB + following).flatten(), minlength=VOCAB**3).view(VOCAB**2, VOCAB)
    seen = counts[(tokens[:, :-2] * VOCAB + tokens[:, 1:-1]).flatten()].double()  # (bytes, vocab)
    if prior is None:
        shares = (seen + 1) / (seen.sum(-1, keepdim=True) + VOCAB)
    else:
        single = torch.bincount(read.flatten(), minlength=VOCAB).double() + 1
        pairs = torch.bincount((read[:, :-1] * VOCAB + read[:, 1:]).flatten(), minlength=VOCAB**2).double()
        follows = pairs.view(VOCAB, VOCAB) + prior * single / single.sum()
        follows = (follows / follows.sum(-1, keepdim=True))[tokens[:, 1:-1].flatten()]
        shares = (seen + prior * follows) / (seen.sum(-1, keepdim=True) + prior)
    return float(-shares.gather(-1, tokens[:, 2:].reshape(-1, 1)).log().mean())
