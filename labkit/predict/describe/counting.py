"""Any `nn.Module`, counted: one forward pass over shapes alone, on torch's meta device."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from labkit.predict.describe.convolutional import WINOGRAD
from labkit.predict.describe.work import Block, Product


@dataclass(frozen=True)
class Counted:
    """What one sample costs in a module, as counted; everything grows with the number of samples."""

    name: str
    parameters: int
    forward_flops: float
    """Of one sample, by torch.utils.flop_counter: matrix products, convolutions, attention."""
    saved_bytes: float
    """Of one sample: what autograd keeps for backward, parameters left out; in the module's own dtype."""
    work: Block
    """Of one sample."""

    @property
    def units_per_sample(self) -> int:
        return 1

    def flops(self, samples: float = 1, convention: str = "model", recompute: str = "none") -> float:
        """Backward is counted as twice forward."""
        return samples * self.forward_flops * (4 if convention == "hardware" and recompute == "full" else 3)

    def activation_bytes(self, samples: float, *, recompute: str = "none", nbytes: int = 2) -> float:
        """As saved; full recomputation keeps the first and last of every square root of the layers (Chen et al.
        2016)."""
        kept = samples * self.saved_bytes * nbytes / 4
        return kept / max(1.0, self.work.kernels**0.5) if recompute == "full" else kept

    def block(self, samples: float, *, nbytes: int = 2) -> Block:
        scale = samples * nbytes / 4
        return replace(
            self.work,
            products=tuple(
                product._replace(m=product.m * samples, values=product.values and product.values * samples)
                for product in self.work.products
            ),
            forward_bytes=self.work.forward_bytes * scale,
            backward_bytes=self.work.backward_bytes * scale,
            flash_flops=self.work.flash_flops * samples,
        )


def count(module: Any, *inputs: Any, name: str | None = None, **named: Any) -> Counted:
    """Count `module` over example inputs whose first dimension is the batch; neither is changed.

    Parameters that are shared are counted once. Raises ValueError when no input is a tensor with a batch dimension.
    """
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    def to_meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    batches = [value.shape[0] for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor) and value.ndim]
    if not batches or batches[0] < 1:
        raise ValueError("count needs an example input: a tensor whose first dimension is the batch, of 1 or more")
    batch = batches[0]
    shadow = copy.deepcopy(module).to("meta")
    products: list[Product] = []
    moved = 0.0
    kernels = 0

    def note(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal moved, kernels
        if not isinstance(output, torch.Tensor) or list(layer.children()):
            return
        kernels += 1
        if isinstance(layer, nn.Linear):
            products.append(Product(output.numel() / layer.out_features / batch, layer.out_features, layer.in_features))
        elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            per_output = layer.weight[0].numel()
            places = output.numel() / layer.out_channels / batch
            read = sum(arg.numel() for arg in args if isinstance(arg, torch.Tensor))
            winograd = set(layer.kernel_size) == {3} and set(layer.stride) == {1} and layer.groups == 1
            products.append(
                Product(
                    places,
                    layer.out_channels / layer.groups,
                    per_output,
                    layer.groups,
                    values=(read + output.numel()) / batch,
                    fewer_in_fp32=WINOGRAD if winograd else 1.0,
                )
            )
        else:
            taken = sum(arg.numel() for arg in args if isinstance(arg, torch.Tensor))
            moved += 4.0 * (taken + output.numel()) / batch

    handles = [layer.register_forward_hook(note) for layer in shadow.modules()]
    own = {parameter.untyped_storage()._cdata for parameter in shadow.parameters()}
    saved: dict[int, float] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = float(storage.nbytes())
            alive.append(tensor)
        return tensor

    alive: list[torch.Tensor] = []  # so that no storage is freed and its address taken for another
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        shadow(*map(to_meta, inputs), **{key: to_meta(value) for key, value in named.items()})
    for handle in handles:
        handle.remove()
    flops = counter.get_total_flops() / batch
    rest = max(0.0, flops - sum(product.flops for product in products))
    return Counted(
        name or type(module).__name__,
        sum(parameter.numel() for parameter in shadow.parameters()),
        flops,
        sum(saved.values()) / batch,
        Block(tuple(products), moved, 2 * moved, max(1, kernels), rest),
    )
