"""Work in the terms that a GPU's time is counted in: matrix products, attention, bytes through memory, kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Product(NamedTuple):
    """(m, k) times (k, n), `batch` of them in one kernel."""

    m: float
    n: float
    k: float
    batch: float = 1
    weight: bool = True
    """(k, n) is a parameter; else both sides are activations, as in attention's products."""
    values: float | None = None
    """Read and written, where that is not the three matrices: a convolution reads its input once, whatever its kernel
    (implicit GEMM: Chetlur et al. 2014)."""
    fewer_in_fp32: float = 1.0
    """Without tensor cores, so many times fewer multiplications: Winograd's filters."""

    @property
    def flops(self) -> float:
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class Block:
    """What one layer does for one microbatch on one GPU, forward; backward follows from it."""

    products: tuple[Product, ...]
    forward_bytes: float
    """Read and written by everything that is no product: norms, activations, dropout, residuals, softmax."""
    backward_bytes: float
    kernels: int
    """Launched in forward, as eager code does it."""
    flash_flops: float = 0.0
    """Attention in one kernel that keeps its scores on chip; with the causal half left out where it is skipped."""
    attention_bytes: float = 0.0
    """The share of `forward_bytes` and of what selective recomputation does again."""

    @property
    def flops(self) -> float:
        """Forward."""
        return sum(product.flops for product in self.products) + self.flash_flops
