"""Image classifiers: sizes as published, and what their first step looks like."""

from __future__ import annotations

import pytest
import torch

from labkit.course.phase4_production.image_classification.given.memory import activation_gb, optimizer_bytes, unit_gb
from labkit.models import IMAGE_MODELS, image_model
from labkit.predict import resnet


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_images_become_logits(name: str) -> None:
    with torch.device("meta"):
        model = image_model(name, 3, 32, 7)
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 7)


def test_sizes_are_those_of_the_papers() -> None:
    """25.6 million parameters (He et al. 2016), 86 million (Dosovitskiy et al. 2021), less its class token."""
    with torch.device("meta"):
        sizes = {
            name: sum(one.numel() for one in image_model(name, 3, 224, 1000).parameters())
            for name in ("resnet50", "resnet18", "vit-b16")
        }
    assert sizes["resnet50"] == resnet(50).parameters == 25_557_032
    assert sizes["resnet18"] == 11_689_512
    assert sizes["vit-b16"] == 86_567_656 - 2 * 768


def test_a_residual_block_begins_as_the_identity() -> None:
    model = image_model("resnet18", 3, 32, 10)
    x = torch.rand(2, 64, 8, 8)
    block = model.get_submodule("blocks.0")
    assert torch.equal(block(x), x)


def test_a_name_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match=r"name must be one of mlp, resnet8, .*, got 'vgg'"):
        image_model("vgg", 3, 32, 10)


def test_memory_is_counted_without_computing() -> None:
    """A linear layer saves its input, a ReLU its output; checkpointed, a block saves its input alone."""
    model = image_model("mlp", 1, 8, 10)  # blocks 64 -> 128 -> 128, head 128 -> 10
    plain = activation_gb(model, (1, 8, 8))
    assert plain == pytest.approx(4 * (64 + 128 + 128) / 1e9)
    assert unit_gb(model) == pytest.approx(4 * (128 * 128 + 128) / 1e9)
    assert optimizer_bytes(torch.optim.AdamW, ema=True) == 12
    assert optimizer_bytes(lambda parameters: torch.optim.SGD(parameters, lr=0.1), ema=False) == 0
    deep = image_model("vit-tiny", 3, 32, 10)
    assert activation_gb(deep, (3, 32, 32), checkpointed=True) < 0.5 * activation_gb(deep, (3, 32, 32))
