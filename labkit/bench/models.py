"""Models of `labkit bench`: torch modules of few operators, and the same as `labkit.predict` describes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import predict
from labkit.models import GPT, GPTConfig
from labkit.predict.describe import Description
from labkit.predict.describe.convolutional import Convolutional
from labkit.predict.describe.transformer import Transformer


@dataclass(frozen=True)
class BenchModel:
    """A model that can be trained and predicted."""

    description: Description
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    """Loss of a model for so many random samples."""
    tokens_per_sample: int = 1


class BlockProducts(nn.Module):
    """A convolutional network with one matrix product for each of its resolutions: same parameters, same FLOPs.

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


def named(name: str) -> BenchModel:
    """Return a model by the name that `labkit predict` knows. Raises ValueError for one that cannot be trained here."""
    model = predict.model(name)
    if isinstance(model, Convolutional):
        return BenchModel(model, lambda: BlockProducts(model), _image_loss)
    if isinstance(model, predict.MLP):
        return BenchModel(model, lambda: _mlp(model.sizes), _vector_loss)
    if isinstance(model, Transformer) and model.causal and model.experts == 1 and not model.gated:
        config = GPTConfig(model.layers, model.heads, model.width, model.vocab, model.sequence)
        return BenchModel(model, lambda: GPT(config), _token_loss, model.sequence)
    raise ValueError(f"model {name!r} cannot be trained here: choose a ResNet, a GPT or an MLP such as mlp-784x256x10")


def with_sequence(model: BenchModel, sequence: int) -> BenchModel:
    """Return a GPT with another length of its samples. Raises ValueError for other models."""
    description = model.description
    if not isinstance(description, Transformer):
        raise ValueError(f"model {description.name!r} has no sequence length to change")
    config = GPTConfig(description.layers, description.heads, description.width, description.vocab, sequence)
    return replace(
        model, description=replace(description, sequence=sequence), make=lambda: GPT(config), tokens_per_sample=sequence
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
