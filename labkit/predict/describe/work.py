"""Work in the units that determine a GPU's time: matrix products, attention, bytes through memory, kernels."""

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
    """Whether (k, n) is a parameter; otherwise both factors are activations, as in attention."""
    values: float | None = None
    """Number of values read and written, if not the three matrices: a convolution reads its input once, regardless of
    its kernel size (implicit GEMM: Chetlur et al. 2014)."""
    fewer_in_fp32: float = 1.0
    """Factor by which Winograd's filters reduce the multiplications without tensor cores."""

    @property
    def flops(self) -> float:
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class Block:
    """Forward work of one layer for one microbatch on one GPU; backward is derived from it."""

    products: tuple[Product, ...]
    forward_bytes: float
    """Bytes read and written by all but matrix products: norms, activations, dropout, residuals, softmax."""
    backward_bytes: float
    kernels: int
    """Number of kernels launched in forward, in eager mode."""
    flash_flops: float = 0.0
    """FLOPs of fused attention, which keeps its scores on chip; without the causal half where it is skipped."""
    attention_bytes: float = 0.0
    """Attention's part of `forward_bytes`, repeated by selective recomputation."""

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass."""
        return sum(product.flops for product in self.products) + self.flash_flops
