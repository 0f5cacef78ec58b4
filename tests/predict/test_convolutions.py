"""Convolutions: their cost on a GPU, against runs that no constant was fitted to and against known properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit.hardware import GPUS, topology
from labkit.predict import COMPONENTS, FITTED, Plan, count, model, predict
from labkit.predict.costs.matmul import Processor, backward_seconds
from labkit.predict.describe import Convolution, Convolutional

V100 = topology("dgx-1", nproc_per_node=1, nics_per_node=1)


@pytest.mark.parametrize(
    ("precision", "channels_last", "milliseconds"),
    [("fp16", True, 110.93), ("fp16", False, 152.20), ("fp32", False, 342.37)],
)
def test_torchvisions_resnet50_on_a_v100(precision: str, channels_last: bool, milliseconds: float) -> None:
    """128 images; sandeepkumar-skb/pytorch_experiments, torchvision_exp/README.md."""
    plan = Plan(128, 128, precision=precision, channels_last=channels_last, fusion="none")  # type: ignore[arg-type]
    made = predict(model("resnet50"), plan, V100)
    assert made.step_seconds * 1e3 == pytest.approx(milliseconds, rel=0.12)


def test_a_convolution_reads_its_input_once_whatever_its_kernel() -> None:
    """3 x 3 over 64 channels is bound by arithmetic; as a plain product it would read 9 times as much."""
    a100 = Processor(GPUS["a100-80gb"], "bfloat16", COMPONENTS)
    layer = Convolution(64, 64, 3, 112).product(256)
    assert layer.values is not None and layer.values < 2.1 * 256 * 64 * 112**2
    plain = layer._replace(values=None)
    assert a100.product(layer) < 0.7 * a100.product(plain)


def test_gradients_of_weights_fill_the_gpu() -> None:
    """Few weights, many places: the inner dimension is split until all multiprocessors work."""
    a100 = Processor(GPUS["a100-80gb"], "bfloat16", COMPONENTS)
    layer = Convolution(64, 64, 3, 56).product(256)
    inputs, weights = backward_seconds((layer,), a100)
    assert weights < 2 * inputs


def test_tensor_cores_want_channels_last_and_fp32_does_not() -> None:
    def seconds(precision: str, channels_last: bool) -> float:
        plan = Plan(64, 64, precision=precision, channels_last=channels_last)  # type: ignore[arg-type]
        return predict(model("resnet50"), plan, V100).step_seconds

    assert seconds("fp16", False) > 1.2 * seconds("fp16", True)
    assert seconds("fp32", False) == seconds("fp32", True)


def test_fused_norms_move_less_and_launch_less() -> None:
    net = model("resnet50")
    assert isinstance(net, Convolutional)
    apart, joined = net.block(1), net.block(1, fused=True)
    assert joined.forward_bytes < apart.forward_bytes and joined.backward_bytes < apart.backward_bytes
    assert joined.kernels < apart.kernels and joined.flops == apart.flops


def test_winograds_filters_serve_fp32_only() -> None:
    layer = Convolution(256, 256, 3, 14).product(64)
    for dtype, gain in (("float32", 1.8), ("float16", 1.0)):
        v100 = Processor(GPUS["v100-32gb"], dtype, COMPONENTS)
        assert v100.product(layer._replace(fewer_in_fp32=1.0)) >= gain * v100.product(layer)


def test_groups_cost_less_than_one_but_more_than_their_flops() -> None:
    v100 = Processor(GPUS["v100-32gb"], "float16", FITTED)
    whole = Convolution(256, 256, 3, 56).product(64)
    groups = Convolution(256, 256, 3, 56, groups=32).product(64)
    assert groups.flops == whole.flops / 32
    assert v100.product(whole) / 32 < v100.product(groups) < v100.product(whole)


def test_a_module_is_counted_as_it_is_described() -> None:
    """A bottleneck of ResNet-50, as a module and as a list of convolutions, for a batch."""

    def part(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    counted = count(nn.Sequential(*part(256, 64, 1), *part(64, 64, 3), *part(64, 256, 1)), torch.zeros(2, 256, 56, 56))
    described = Convolutional(
        "part", (Convolution(256, 64, 1, 56), Convolution(64, 64, 3, 56), Convolution(64, 256, 1, 56))
    )
    assert counted.parameters == described.parameters and counted.flops() == described.flops()
    plan = Plan(64, 64, precision="fp16", fusion="none")
    seconds = [predict(net, plan, V100).step_seconds for net in (counted, described)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.25)


def test_passes_over_images_run_at_the_copying_rate() -> None:
    plan = Plan(64, 64, precision="fp16")
    slower = replace(FITTED, passes_share=FITTED.passes_share / 2)
    assert predict(model("resnet50"), plan, V100, constants=slower) == predict(model("resnet50"), plan, V100)
