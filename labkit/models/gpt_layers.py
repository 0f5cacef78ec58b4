"""Layers of a GPT with tied embeddings that are made one by one, so that no rank ever holds the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.models.gpt import Block, GPTConfig


class Embedding(nn.Module):
    """First layer: tokens (batch, length) to (batch, length, width)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token_embedding: nn.Module = _small(nn.Embedding(config.vocab, config.width))
        self.position_embedding = _small(nn.Embedding(config.context, config.width))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.token_embedding(tokens) + self.position_embedding(positions)
        return embedded


class Head(nn.Module):
    """Last layer: (batch, length, width) to logits (batch, length, vocab)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.head: nn.Module = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits


class LayerPlan(nn.Module):
    """A layer that is not made yet: a module without parameters, for `split_into_stages`."""

    def __init__(self, make: Callable[[], nn.Module], cost: float) -> None:
        super().__init__()
        self.make = make
        """Function that returns the whole layer: a new one at each call, with the same values on every rank."""
        self.cost = cost
        """FLOPs for each token, forward."""


def gpt_layers(config: GPTConfig, seed: int = 0, dtype: torch.dtype | None = None) -> list[LayerPlan]:
    """Return plans of the layers of a GPT: an `Embedding`, `config.layers` of `Block`, and a `Head`.

    Each layer's parameters are drawn from a seed of its own. `Head.head` and `Embedding.token_embedding` are made with
    equal weights; `share` ties them.
    """
    width, block = config.width, partial(Block, config)
    kinds: list[tuple[Callable[[], nn.Module], float]] = [
        (partial(Embedding, config), 0),
        *[(block, 24 * width**2 + 4 * config.context * width)] * config.layers,
        (partial(_head_like_embedding, config, seed), 2 * config.vocab * width),
    ]
    return [LayerPlan(partial(_made, kind, seed + place, dtype), cost) for place, (kind, cost) in enumerate(kinds)]


def _made(kind: Callable[[], nn.Module], seed: int, dtype: torch.dtype | None) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = kind()
    return layer if dtype is None else layer.to(dtype)


def _head_like_embedding(config: GPTConfig, seed: int) -> nn.Module:
    layer = Head(config)
    torch.manual_seed(seed)  # that of the embedding, which draws these first
    layer.head.weight = _small(nn.Embedding(config.vocab, config.width)).weight
    return layer


def _small(embedding: nn.Embedding) -> nn.Embedding:
    """Scale its weights to a standard deviation of 0.02, as in GPT-2: they are those of the head, too."""
    with torch.no_grad():
        embedding.weight.mul_(0.02)
    return embedding


def share(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return this rank's weights of those that embedding and head share; one for both if the rank has both."""
    by_kind: dict[type, Any] = {type(layer): layer for layer in layers if isinstance(layer, (Embedding, Head))}
    embedding, head = by_kind.get(Embedding), by_kind.get(Head)
    if embedding is not None and head is not None:
        head.head.weight = embedding.token_embedding.weight
    ends = [embedding and embedding.token_embedding, head and head.head]
    return list(dict.fromkeys(end.weight for end in ends if end is not None))
