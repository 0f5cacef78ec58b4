"""Models of `labkit bench`: the networks of `labkit.models` under their own names, and what is predicted of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from labkit.bench.models import BlockProducts, named
from labkit.models import GPT, ResNet, ViT
from labkit.predict import model


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "network"),
    [("resnet50", ResNet), ("vit-b16", ViT), ("vit-l16", ViT), ("gpt2-small", GPT), ("mlp-16x8x4", nn.Sequential)],
)
def test_a_name_is_the_network_that_is_predicted(name: str, network: type[nn.Module]) -> None:
    of = named(name)
    with torch.device("meta"):
        module = of.make()
        loss = of.loss(module, 2)
    assert isinstance(module, network) and loss.shape == ()
    # a ViT is predicted with a class token, which this one has not
    class_token = {"vit-b16": 768, "vit-l16": 1024}.get(name, 0)
    assert parameters(module) == of.description.parameters - class_token


def test_a_resnet_is_of_convolutions_with_norms() -> None:
    with torch.device("meta"):
        layers = list(named("resnet50").make().modules())
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 53
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in layers) == 53


def test_a_stand_in_has_a_name_of_its_own_and_costs_as_much() -> None:
    of, network = named("resnet50-products"), model("resnet50")
    with torch.device("meta"):
        module = of.make()
        of.loss(module, 2)
    assert isinstance(module, BlockProducts) and of.description.name == "resnet50-products"
    assert of.description.parameters == parameters(module)
    assert math.isclose(parameters(module), network.parameters, rel_tol=1e-3)
    assert math.isclose(of.description.flops(), network.flops(), rel_tol=0.05)


def test_a_gpt_has_the_sequence_that_is_asked_for() -> None:
    of = named("gpt2-small", 64)
    with torch.device("meta"):
        module = of.make()
    assert isinstance(module, GPT) and module.config.context == of.tokens_per_sample == 64
    assert of.description.parameters == parameters(module)
