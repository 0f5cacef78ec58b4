"""Time of a matrix product: tiles over multiprocessors, in waves, under the roofline.

A product is cut into tiles of the output, one multiprocessor to a tile; the last wave is as long as a full one (NVIDIA,
"Matrix Multiplication Background User's Guide": tile and wave quantization). Large tiles reuse what they load and run
at the full rate, small ones waste less on small products; like the library, this code picks the best.
"""

from __future__ import annotations

import math
from functools import lru_cache

from labkit.hardware import GPU
from labkit.predict.constants import Constants, share
from labkit.predict.describe.work import Product

ROOFLINE = "tiles, waves, roofline: Williams et al. 2009; NVIDIA's matrix multiplication guide"
"""Source of the terms that are sums of products and passes."""
TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (128, 64, 0.75), (64, 128, 0.75), (64, 64, 0.6),
    (64, 32, 0.4), (64, 16, 0.24), (64, 8, 0.13),
)  # fmt: skip
"""Height, width, and the share of the full rate that the tile reaches, given its loads. The narrow ones, for grouped
convolutions, are slower than 64 x 64 in proportion to their loads per multiplication, 1/height + 1/width."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Possible numbers of parts of the inner dimension (split-K), to fill the GPU when there are few tiles. More than four,
as in gradients of convolutions' weights, pay for their partial sums in memory."""


class Processor:
    """One GPU at one precision: its rates, looked up once."""

    __slots__ = (
        "backward_flash",
        "bytes_per_second",
        "elementwise",
        "flash",
        "flops",
        "kernel",
        "ramp",
        "tensor_cores",
        "units",
        "width",
    )

    def __init__(self, gpu: GPU, dtype: str, constants: Constants, attention: str = "flash2") -> None:
        plain = gpu.seconds(1e15, 0, dtype) - gpu.launch_seconds
        kept = share(constants.sustained, gpu.name, 1.0)
        self.flops = 1e15 / plain * kept
        peak = self.flops / kept / gpu.matmul_efficiency  # at the clocks that a power limit leaves
        half = peak if "8" not in dtype else peak / 2
        self.flash = half * share(getattr(constants, attention, constants.flash2), gpu.name, 0.5) * kept
        self.backward_flash = self.flash * constants.flash_backward / 2.5
        self.bytes_per_second = gpu.memory_gb_per_s * 1e9 * gpu.memory_efficiency
        self.elementwise = self.bytes_per_second * constants.passes_share
        self.kernel = constants.kernel_seconds
        self.ramp = constants.ramp_k
        self.tensor_cores = dtype != "float32"
        self.units = gpu.multiprocessors if constants.waves else 0
        self.width = {"float32": 4, "tf32": 4}.get(dtype, 1 if "8" in dtype and "float8" in dtype else 2)

    def product(self, product: Product) -> float:
        """Seconds of one matrix product, without the host's launch."""
        rate = self.flops * (1 if self.tensor_cores else product.fewer_in_fp32)
        return _product_seconds(
            product.m, product.n, product.k, product.batch, rate, self.units, self.ramp,
            self.bytes_per_second / self.width, product.values,
        ) + self.kernel  # fmt: skip

    def passes(self, nbytes: float, kernels: float = 0) -> float:
        """Seconds to read and write `nbytes` in total, in `kernels` kernels."""
        return nbytes / self.elementwise + kernels * self.kernel


@lru_cache(maxsize=65536)
def _product_seconds(
    m: float, n: float, k: float, batch: float, rate: float, units: float, ramp: float, values_per_second: float,
    values: float | None,
) -> float:  # fmt: skip
    moving = (batch * (m * k + k * n + m * n) if values is None else values) / values_per_second
    if not units:
        return max(2 * m * n * k * batch / rate, moving)
    best = math.inf
    for height, width, share_of_rate in TILES:
        tiles = math.ceil(m / height) * math.ceil(n / width) * batch
        one = 2 * height * width / (rate / units * share_of_rate)
        for split in SPLITS:
            if split > 1 and tiles >= units:
                break
            waves = math.ceil(tiles * split / units)
            sums = 2 * split * batch * m * n / values_per_second if split > 4 else 0.0
            best = min(best, waves * one * (k / split + ramp) + sums)
    return max(best, moving)


def forward_seconds(products: tuple[Product, ...], processor: Processor) -> float:
    return sum(processor.product(product) for product in products)


def backward_seconds(products: tuple[Product, ...], processor: Processor) -> tuple[float, float]:
    """Seconds for gradients of the inputs and of the weights: two products for each one, with the same FLOPs."""
    inputs = weights = 0.0
    for product in products:
        m, n, k = product[:3]
        inputs += processor.product(product._replace(n=k, k=n))
        second = processor.product(product._replace(m=k, k=m))
        if product.weight:
            weights += second
        else:
            inputs += second
    return inputs, weights
