"""Image classifiers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from labkit.models.mlp import ImageMLP
from labkit.models.resnet import ResNet
from labkit.models.vit import ViT

_RESNET = partial(ResNet, counts=(2, 2, 2, 2), bottleneck=False)
_MODELS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "mlp": lambda channels, size, classes: ImageMLP(channels, size, classes),
    "resnet8": lambda channels, size, classes: ResNet(channels, classes, (1, 1, 1), 16, False, small_images=True),
    "resnet18": lambda channels, size, classes: _RESNET(channels, classes, small_images=size <= 64),
    "resnet50": lambda channels, size, classes: ResNet(channels, classes, small_images=size <= 64),
    "vit-tiny": lambda channels, size, classes: ViT(channels, size, classes, max(1, size // 4), 4, 4, 64),
    "vit-b16": lambda channels, size, classes: ViT(channels, size, classes),
}
IMAGE_MODELS = tuple(_MODELS)
"""Names that `image_model` knows."""


def image_model(name: str, channels: int, size: int, classes: int) -> nn.Module:
    """Return a new model for images (channels, size, size). Raises ValueError for a name that is not known."""
    if name not in _MODELS:
        raise ValueError(f"name must be one of {', '.join(_MODELS)}, got {name!r}")
    return _MODELS[name](channels, size, classes)
