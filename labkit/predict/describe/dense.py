"""Multi-layer perceptrons: linear layers with biases, and activations between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from labkit.predict.describe.conventions import RECOMPUTED, Convention
from labkit.predict.describe.work import Block, Product


@dataclass(frozen=True)
class MLP:
    """`sizes`: widths of input, hidden layers and output; (784, 256, 10) has two linear layers."""

    name: str
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(f"{self.name}: an MLP needs two sizes or more, each at least 1, got {self.sizes}")

    @property
    def parameters(self) -> int:
        return sum(inputs * outputs + outputs for inputs, outputs in pairwise(self.sizes))

    @property
    def units_per_sample(self) -> int:
        return 1

    def flops(self, samples: float = 1, convention: Convention = "model", recompute: str = "none") -> float:
        """Forward and backward: 6 per weight and sample, 8 with full recomputation and a convention that counts it."""
        weights = sum(inputs * outputs for inputs, outputs in pairwise(self.sizes))
        return samples * weights * (8.0 if convention in RECOMPUTED and recompute == "full" else 6.0)

    def activation_bytes(self, samples: float, *, recompute: str = "none", nbytes: int = 2) -> float:
        """Bytes kept for backward: the input of each layer; full recomputation keeps only the first."""
        kept = self.sizes[0] if recompute == "full" else sum(self.sizes[:-1])
        return samples * nbytes * kept

    def block(self, samples: float, *, nbytes: int = 2) -> Block:
        """Forward pass of the whole network."""
        products = tuple(Product(samples, outputs, inputs) for inputs, outputs in pairwise(self.sizes))
        values = samples * sum(self.sizes[1:]) * nbytes
        return Block(products, 2 * values, 3 * values, 2 * len(products))
