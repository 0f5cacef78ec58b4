"""Convolutional networks as a list of convolutions: VGG-16, ResNet-50, 101, 152 (He et al. 2016), and variants.

ResNeXt splits its 3 x 3 convolutions into groups of channels (Xie et al. 2017); squeeze-and-excitation scales channels
by the output of two small layers applied to their means (Hu et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from labkit.predict.describe.conventions import RECOMPUTED, Convention
from labkit.predict.describe.work import Block, Product

WINOGRAD = 2.25
"""Savings for 3 x 3 at stride 1 in tiles of 2 x 2: 16 multiplications instead of 36 (Lavin & Gray 2016)."""


@dataclass(frozen=True)
class Convolution:
    """One convolution, followed by a norm if `norm`; `size` is its output's height and width."""

    inputs: int
    outputs: int
    kernel: int
    size: int
    stride: int = 1
    norm: bool = True
    relu: bool = True
    residual: bool = False
    """Whether a residual is added to the output."""
    bias: bool = False
    groups: int = 1
    """Number of channel groups; each sees 1/groups of the inputs."""
    scaled: bool = False
    """Whether squeeze-and-excitation follows: the output's means are taken, and its channels scaled."""

    @property
    def parameters(self) -> int:
        weights = self.inputs // self.groups * self.outputs * self.kernel**2
        return weights + (2 * self.outputs if self.norm else 0) + (self.outputs if self.bias else 0)

    @property
    def values(self) -> int:
        """Number of values in the output of one sample."""
        return self.outputs * self.size**2

    @property
    def read(self) -> int:
        """Number of values in the input of one sample."""
        return self.inputs * (self.size * self.stride) ** 2

    def product(self, samples: float) -> Product:
        """Implicit GEMM: a row per output position, a column per channel, batched over the groups."""
        return Product(
            samples * self.size**2, self.outputs / self.groups, self.inputs / self.groups * self.kernel**2, self.groups,
            values=samples * (self.read + self.values) + self.parameters,
            fewer_in_fp32=WINOGRAD if self.kernel == 3 and self.stride == 1 and self.groups == 1 else 1.0,
        )  # fmt: skip

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass of one sample; a multiply-add counts as two."""
        return 2.0 * self.inputs / self.groups * self.kernel**2 * self.values


@dataclass(frozen=True)
class Convolutional:
    """A network of convolutions; a fully connected layer is a convolution of size 1 on an image of 1 x 1."""

    name: str
    convolutions: tuple[Convolution, ...]

    @cached_property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.convolutions)

    @property
    def units_per_sample(self) -> int:
        return 1

    def flops(self, samples: float = 1, convention: Convention = "model", recompute: str = "none") -> float:
        """FLOPs of forward and backward; forward counts twice with full recomputation, if the convention counts it."""
        forward = sum(layer.flops for layer in self.convolutions)
        return samples * forward * (4 if convention in RECOMPUTED and recompute == "full" else 3)

    def activation_bytes(self, samples: float, *, recompute: str = "none", nbytes: int = 2) -> float:
        """Bytes kept for backward: each convolution's output, and its norm's with ReLU in place; full: one of four."""
        kept = sum(layer.values * (2 if layer.norm else 1) for layer in self.convolutions)
        return samples * nbytes * kept / (4 if recompute == "full" else 1)

    def block(self, samples: float, *, nbytes: int = 2, fused: bool = False, channels_last: bool = True) -> Block:
        """Forward pass of the whole network: convolutions as products over all positions, norms and ReLUs as passes.

        fused: norm, residual and ReLU run in one kernel. channels_last: the layout that tensor cores need; without it,
        inputs and outputs are transposed around each convolution.
        """
        forward = backward = 0.0
        kernels = 0
        for layer in self.convolutions:
            # forward: statistics, then scale; ReLU in place; the residual's sum; squeeze's mean. Backward: ReLU reads
            # gradient and output; the norm reads gradient and input twice; gradients of the two branches are added;
            # eager squeeze writes the product of gradient and output before summing it
            there, back = (3.0, 5.0) if layer.norm else (0.0, 0.0)
            if layer.residual:
                there, back = there + (1 if fused else 3), back + 3
            if layer.relu and not (fused and layer.norm):
                there, back = there + 2, back + 3
            if layer.scaled:
                there, back = there + 1, back + (4 if fused else 8)
            if not channels_last:
                between = 2 * (layer.read + layer.values) / layer.values
                there, back = there + between, back + 2 * between
            forward += there * layer.values
            backward += back * layer.values
            kernels += 1 + layer.norm + (not fused) * (layer.relu + layer.residual) + layer.scaled
        products = tuple(layer.product(samples) for layer in self.convolutions)
        return Block(products, samples * nbytes * forward, samples * nbytes * backward, kernels)


def resnet(
    depth: int, classes: int = 1000, image: int = 224, *, groups: int = 1, group_width: int = 64, squeeze: int = 0
) -> Convolutional:
    """ResNet-`depth` v1.5, bottlenecks with the stride in the 3 x 3. Raises ValueError for another depth.

    `groups` above 1: ResNeXt, whose first stage has groups of `group_width` channels. `squeeze` above 0:
    squeeze-and-excitation with the channels reduced by that factor.
    """
    blocks = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}.get(depth)
    if blocks is None:
        raise ValueError(f"ResNet with bottlenecks has depth 50, 101 or 152, not {depth}")
    layers = [Convolution(3, 64, 7, image // 2, 2)]
    size, inputs = image // 4, 64
    for stage, count in enumerate(blocks):
        outputs, width = 256 * 2**stage, groups * group_width * 2**stage
        for index in range(count):
            stride = 2 if index == 0 and stage > 0 else 1
            size //= stride
            layers += [
                Convolution(inputs, width, 1, size * stride),
                Convolution(width, width, 3, size, stride, groups=groups),
                Convolution(width, outputs, 1, size, residual=True, scaled=squeeze > 0),
            ]
            if squeeze:
                layers += [
                    Convolution(outputs, outputs // squeeze, 1, 1, norm=False, bias=True),
                    Convolution(outputs // squeeze, outputs, 1, 1, norm=False, bias=True),
                ]
            if index == 0:
                layers.append(Convolution(inputs, outputs, 1, size, stride, relu=False))
            inputs = outputs
    layers.append(Convolution(inputs, classes, 1, 1, norm=False, relu=False, bias=True))
    name = f"resnet{depth}" if groups == 1 else f"resnext{depth}-{groups}x{group_width}d"
    return Convolutional(f"se-{name}" if squeeze else name, tuple(layers))


def vgg16(classes: int = 1000) -> Convolutional:
    """VGG-16 without norms (Simonyan & Zisserman 2015), images of 224; most weights are in its last layers."""
    layers, inputs = [], 3
    for size, outputs, count in ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)):
        for _ in range(count):
            layers.append(Convolution(inputs, outputs, 3, size, norm=False, bias=True))
            inputs = outputs
    for inputs, outputs in ((512 * 7 * 7, 4096), (4096, 4096)):
        layers.append(Convolution(inputs, outputs, 1, 1, norm=False, bias=True))
    layers.append(Convolution(4096, classes, 1, 1, norm=False, relu=False, bias=True))
    return Convolutional("vgg16", tuple(layers))
