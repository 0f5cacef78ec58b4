"""Cost of any `nn.Module`, counted from shapes alone: forward and backward on torch's meta device."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from labkit.predict.describe.conventions import ALL_PAIRS, RECOMPUTED, Convention
from labkit.predict.describe.work import Block, Product


@dataclass(frozen=True)
class ModuleCosts:
    """Counted costs of a module."""

    name: str
    parameters: int
    forward_flops: float
    """FLOPs of one sample: matrix products, convolutions, attention over all pairs."""
    saved_bytes: float
    """Bytes per sample that autograd keeps for backward, without parameters, in the module's own dtype."""
    work: Block
    """Work of one sample."""
    fixed_bytes: tuple[float, float] = (0.0, 0.0)
    """Bytes moved forward and backward regardless of the number of samples, such as gradients of a table."""

    @property
    def units_per_sample(self) -> int:
        return 1

    def flops(self, samples: float = 1, convention: Convention = "model", recompute: str = "none") -> float:
        """FLOPs of forward and backward; backward counts as twice forward. Masked pairs are known, and not counted,
        where attention is one call with `is_causal`."""
        forward = self.forward_flops if convention in ALL_PAIRS else self.work.flops
        return samples * forward * (4 if convention in RECOMPUTED and recompute == "full" else 3)

    def activation_bytes(self, samples: float, *, recompute: str = "none", nbytes: int = 2) -> float:
        """Bytes as saved by autograd; full recomputation keeps the first and last of every square root of the layers
        (Chen et al. 2016)."""
        kept = samples * self.saved_bytes * nbytes / 4
        return kept / max(1.0, self.work.kernels**0.5) if recompute == "full" else kept

    def block(self, samples: float, *, nbytes: int = 2) -> Block:
        scale = nbytes / 4
        forward, backward = self.fixed_bytes
        return replace(
            self.work,
            products=tuple(_of(product, samples) for product in self.work.products),
            forward_bytes=(forward + self.work.forward_bytes * samples) * scale,
            backward_bytes=(backward + self.work.backward_bytes * samples) * scale,
            flash_flops=self.work.flash_flops * samples,
        )


def _of(product: Product, samples: float) -> Product:
    """Scale a product to `samples`: more rows, or for products between activations a larger batch."""
    values = None if product.values is None else product.values * samples
    if product.weight:
        return product._replace(m=product.m * samples, values=values)
    return product._replace(batch=product.batch * samples, values=values)


def count(module: Any, *inputs: Any, name: str | None = None, **named: Any) -> ModuleCosts:
    """Count the costs of `module` on example inputs whose first dimension is the batch; neither is changed.

    Counts every operator that the module calls, and those that autograd calls for it; a loss only if it is part of the
    module. Attention called as one function is one kernel, as on a GPU. Shared parameters are counted once.
    Raises ValueError if no input is a tensor with a batch dimension, or if the module needs values, not only shapes.
    """
    import torch

    from labkit.predict.describe.traffic import watched

    batches = [value.shape[0] for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor) and value.ndim]
    if not batches or batches[0] < 1:
        raise ValueError("count needs an example input: a tensor whose first dimension is the batch, of 1 or more")
    batch = batches[0]
    shadow = copy.deepcopy(module).to("meta")

    def made(value: Any, times: int) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        there = value.to("meta")
        return torch.cat([there] * times) if value.ndim and value.shape[0] == batch else there

    try:
        single, double = (
            watched(
                shadow,
                [made(value, times) for value in inputs],
                {key: made(value, times) for key, value in named.items()},
            )
            for times in (1, 2)
        )
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{type(module).__name__} cannot be counted on shapes alone, for 1 and 2 batches: {reason}"
        ) from error
    (forward, backward, saved), (more_forward, more_backward, more_saved) = single, double
    there = (more_forward.moved - forward.moved) / batch
    back = (more_backward.moved - backward.moved) / batch
    products = tuple(_of(product, 1 / batch) for product in forward.products)
    return ModuleCosts(
        name or type(module).__name__,
        sum(parameter.numel() for parameter in shadow.parameters()),
        forward.flops / batch,
        (more_saved - saved) / batch,
        Block(products, there, back, max(1, forward.kernels), forward.attention_flops / batch),
        (max(0.0, forward.moved - there * batch), max(0.0, backward.moved - back * batch)),
    )
