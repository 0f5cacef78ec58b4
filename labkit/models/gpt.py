"""GPT: a decoder-only transformer like GPT-2 (Radford et al. 2019), written to be taken apart.

Layers are equal and kept in a list, so that a pipeline can cut between them. Query, key and value of one head are
adjacent in one projection, so that a shard of its rows consists of whole heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The default is small enough for a laptop; `GPTConfig(40, 40, 5120)` has 13 billion parameters."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    """Size of each token's vector; a multiple of `heads`."""
    vocab: int = 50_257
    context: int = 1024
    """Maximum number of tokens in a sequence."""
    causal: bool = True
    """Whether tokens cannot attend to later ones."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of {self.heads} heads")

    @property
    def parameters(self) -> int:
        """Number of parameters of a `GPT` of this size."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (2 * self.vocab + self.context + 2) * self.width


class Attention(nn.Module):
    """Self-attention with several heads: (batch, length, width) in and out."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_width, self.causal = config.width // config.heads, config.causal
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        # the number of heads follows from the projection, which has fewer when it is sharded
        heads = self.qkv(x).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = heads.permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """MLP applied to each token separately: (..., width) in and out."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """One layer: attention, then MLP, each with a norm before it and a residual connection."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        out: Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class GPT(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocab). The head is not tied to the embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input of the first layer."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.token_embedding(tokens) + self.position_embedding(positions)
        return embedded

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
