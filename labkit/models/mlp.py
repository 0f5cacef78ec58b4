"""A multilayer perceptron on the pixels of an image."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn


class ImageMLP(nn.Module):
    """Images (batch, channels, size, size) to logits (batch, classes): `depth` hidden layers of `width`."""

    def __init__(self, channels: int, size: int, classes: int, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        widths = [channels * size**2, *[width] * depth]
        self.blocks = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        for block in self.blocks:
            x = F.relu(block(x))
        logits: Tensor = self.head(x)
        return logits
