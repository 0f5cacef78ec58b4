"""Residual networks (He et al. 2016), with the stride of a bottleneck in its 3 x 3 convolution (v1.5).

Blocks are kept in one list, so that sharding and activation checkpointing can take them one by one. The last norm of
each block starts at zero, so that the block starts as the identity (Goyal et al. 2017).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions of `width`, or, if `bottleneck`, 1 x 1, 3 x 3 and 1 x 1 to four times the width."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            sizes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        self.layers = nn.ModuleList(_convolution(*size) for size in sizes)
        last: nn.Module = self.layers[-1][1]  # type: ignore[index]  # a Sequential
        nn.init.zeros_(last.weight)  # type: ignore[arg-type]  # a norm's weight is a parameter
        changed = stride > 1 or inputs != outputs
        self.shortcut: nn.Module = _convolution(inputs, outputs, 1, stride) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number, layer in enumerate(self.layers):
            y = layer(F.relu(y) if number else y)
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Images (batch, channels, height, width) to logits (batch, classes).

    counts: blocks in each stage; the first stage has `width` channels, each later one twice as many, at half the
    resolution. small_images: begin with a 3 x 3 convolution at full resolution, not with 7 x 7 and a pooling layer that
    leave a sixteenth of the pixels.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        counts: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        bottleneck: bool = True,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        self.stem = _convolution(channels, width, 3) if small_images else _convolution(channels, width, 7, 2)
        self.pool: nn.Module = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.ModuleList()
        inputs = width
        for stage, count in enumerate(counts):
            for number in range(count):
                stride = 2 if stage and not number else 1
                self.blocks.append(ResidualBlock(inputs, width << stage, stride, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(torch.mean(x, (2, 3)))
        return logits
