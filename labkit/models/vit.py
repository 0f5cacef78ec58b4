"""Vision transformer: an image as a sequence of patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.gpt import Block, GPTConfig


class ViT(nn.Module):
    """Images (batch, channels, size, size) to logits (batch, classes); the mean over patches is classified.

    patch: height and width of a patch; `size` is a multiple of it. dropout: of the patches' vectors, in training.
    Raises ValueError for another size.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        patch: int = 16,
        layers: int = 12,
        heads: int = 12,
        width: int = 768,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(f"size must be a multiple of patch={patch}, got {size}")
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.dropout = dropout
        config = GPTConfig(layers, heads, width, causal=False)
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT + self.positions
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits
