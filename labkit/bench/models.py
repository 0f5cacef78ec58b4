"""Models of `labkit bench`: the networks of `labkit.models`, each with its description for `labkit.predict`.

A stand-in, which costs as much as a network and has fewer operators, is named after it: `resnet50-products`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import predict
from labkit.models import GPT, IMAGE_MODELS, GPTConfig, ViT, image_model
from labkit.predict.describe import Description
from labkit.predict.describe.convolutional import Convolutional
from labkit.predict.describe.transformer import Transformer

PRODUCTS = "-products"
"""End of the name of a convolutional network's stand-in."""
IMAGE_SIZE = 224
CLASSES = 1000


@dataclass(frozen=True)
class BenchModel:
    """A model that can be trained and predicted."""

    description: Description
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    """Loss of a model for so many random samples."""
    tokens_per_sample: int = 1


class BlockProducts(nn.Module):
    """A stand-in of one matrix product for each resolution of a convolutional network: same parameters, same FLOPs.

    A convolution is a product of its weights with each of its output's positions. All of one resolution are joined to a
    square matrix, of as many parameters, which multiplies the positions' vectors. So a step has a tenth of the
    operators, and a virtual cluster of 256 ranks takes seconds. Norms and pooling are left out.
    """

    def __init__(self, network: Convolutional) -> None:
        super().__init__()
        parameters: dict[int, int] = {}
        for layer in network.convolutions:
            parameters[layer.size**2] = parameters.get(layer.size**2, 0) + layer.parameters
        self.positions = list(parameters)
        """Number of positions at each resolution, from the first one to the classes, which have 1."""
        self.widths = [max(1, round(count**0.5)) for count in parameters.values()]
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for width in self.widths)

    def forward(self, x: Tensor) -> Tensor:
        for layer, positions, width in zip(self.layers, self.positions, self.widths, strict=True):
            x = F.pad(x[:, :positions, :width], (0, max(0, width - x.shape[2])))
            x = F.relu(layer(x))
        return x

    def inputs(self, samples: int) -> Tensor:
        """Return random inputs: (samples, positions, width) of the first layer."""
        return torch.randn(samples, self.positions[0], self.widths[0])


def named(name: str, sequence: int | None = None) -> BenchModel:
    """Return a model by the name that `labkit predict` knows, or the stand-in `NAME-products` of a network.

    sequence: tokens of a sample, if not the model's own. Raises ValueError for a model that cannot be trained here.
    """
    network = name.removesuffix(PRODUCTS)
    model = predict.model(network, sequence=sequence)
    if isinstance(model, Convolutional):
        if name.endswith(PRODUCTS):
            return _products(name, model)
        if name in IMAGE_MODELS:
            return BenchModel(model, lambda: image_model(name, 3, IMAGE_SIZE, CLASSES), _image_loss)
    elif name.endswith(PRODUCTS):
        raise ValueError(f"{name!r}: only convolutional networks, such as resnet50, have a stand-in of products")
    elif isinstance(model, predict.MLP):
        return BenchModel(model, lambda: _mlp(model.sizes), _vector_loss)
    elif isinstance(model, Transformer) and model.patch_values:
        return _vit(model)
    elif isinstance(model, Transformer) and model.causal and model.experts == 1 and not model.gated:
        config = GPTConfig(model.layers, model.heads, model.width, model.vocab, model.sequence)
        # this GPT's head has a matrix of its own, and no dropout
        own = replace(model, tied=False, dropout=False)
        return BenchModel(own, lambda: GPT(config), _token_loss, model.sequence)
    raise ValueError(
        f"model {name!r} cannot be trained here: choose resnet50, a ViT, a GPT, an MLP such as mlp-784x256x10, or a "
        f"network's stand-in such as {network if isinstance(model, Convolutional) else 'resnet50'}{PRODUCTS}"
    )


def _products(name: str, network: Convolutional) -> BenchModel:
    with torch.device("meta"):
        module = BlockProducts(network)
        counted = predict.count(module, module.inputs(1), name=name)
    return BenchModel(counted, lambda: BlockProducts(network), _products_loss)


def _vit(model: Transformer) -> BenchModel:
    patch = isqrt(model.patch_values // 3)
    # this ViT classifies the mean of the patches, and has no class token
    own = replace(model, sequence=model.sequence - 1)
    return BenchModel(
        own, lambda: ViT(3, IMAGE_SIZE, CLASSES, patch, model.layers, model.heads, model.width), _image_loss
    )


def _mlp(sizes: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _inner(model: nn.Module) -> nn.Module:
    """Return the module within a strategy's wrapper."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, nn.Module)
    return inner


def _image_loss(model: nn.Module, samples: int) -> Tensor:
    images = torch.randn(samples, 3, IMAGE_SIZE, IMAGE_SIZE)
    return F.cross_entropy(model(images), torch.randint(CLASSES, (samples,)))


def _products_loss(model: nn.Module, samples: int) -> Tensor:
    inner = _inner(model)
    assert isinstance(inner, BlockProducts)
    outputs: Tensor = model(inner.inputs(samples))
    return outputs.square().mean()


def _vector_loss(model: nn.Module, samples: int) -> Tensor:
    first = _inner(model).get_submodule("0")
    assert isinstance(first, nn.Linear)
    outputs: Tensor = model(torch.randn(samples, first.in_features))
    return outputs.square().mean()


def _token_loss(model: nn.Module, samples: int) -> Tensor:
    inner = _inner(model)
    assert isinstance(inner, GPT)
    tokens = torch.randint(inner.config.vocab, (samples, inner.config.context))
    logits: Tensor = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
