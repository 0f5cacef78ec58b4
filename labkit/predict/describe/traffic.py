"""Work of a module's operators, forward and backward, from shapes alone: products, attention, bytes through memory.

Imported only where it is used: it needs torch, which predictions do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from labkit.predict.describe.convolutional import WINOGRAD
from labkit.predict.describe.work import Product
from labkit.torch_versions.dispatch import TorchDispatchMode, schema_of
from labkit.torch_versions.tensors import storage_key, tree_leaves

aten = torch.ops.aten
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
LOOKED_UP = {"embedding", "index", "index_select", "gather"}
"""Operators that read as many bytes as they write, regardless of the table's size."""


@dataclass
class Traffic:
    """Work of one pass. Bytes are counted in the module's own dtype, mostly fp32."""

    products: list[Product] = field(default_factory=list)
    attention_flops: float = 0.0
    """FLOPs of fused attention, without the masked half."""
    flops: float = 0.0
    """FLOPs, with all s x s pairs of attention."""
    moved: float = 0.0
    kernels: int = 0

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Record one operator that autograd or the module called."""
        name, packet = schema_of(func).name.removeprefix("aten::"), func.overloadpacket
        read, written = tensors((args, kwargs)), tensors(output)
        if func.is_view or name in ("detach", "_unsafe_view") or not read:
            return  # moves nothing, or creates a constant
        self.kernels += 1
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=output)
            self.flops += flops
            if name in PRODUCTS:
                self.products.append(_product(name, args, output))
            elif "backward" not in name:
                self.attention_flops += flops * (0.5 if len(args) > 4 and args[4] is True else 1.0)
        elif name in LOOKED_UP:
            self.moved += 2 * size(written)
        else:
            self.moved += size(read) + size(written)


def _product(name: str, args: Sequence[Any], output: Tensor) -> Product:
    if name == "convolution":
        read, weight, _, stride, _, _, transposed, _, groups = args
        if transposed:  # a row per input position, a column per value that it adds to
            places, inputs = read.numel() / read.shape[1], read.shape[1] / groups
            return Product(places, weight[0].numel(), inputs, groups, values=read.numel() + output.numel())
        places = output.numel() / output.shape[1]
        winograd = set(weight.shape[2:]) == {3} and set(stride) == {1} and groups == 1
        return Product(
            places, output.shape[1] / groups, weight[0].numel(), groups, values=read.numel() + output.numel(),
            fewer_in_fp32=WINOGRAD if winograd else 1.0,
        )  # fmt: skip
    left, right = args[-2:]
    batch = left.shape[0] if left.ndim == 3 else 1
    return Product(left.shape[-2], right.shape[-1], left.shape[-1], batch, weight=left.ndim == 2)


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def size(found: Iterable[Tensor]) -> float:
    """Total bytes of the tensors."""
    return float(sum(tensor.numel() * tensor.element_size() for tensor in found))


class Watch(TorchDispatchMode):
    """Context in which operators are recorded in `traffic`."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.traffic = traffic

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.traffic.note(func, args, kwargs or {}, output)
        return output


class _AsOnGPU(TorchFunctionMode):
    """Counts attention and dropout as one kernel each, as on a GPU; the meta device decomposes them."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if enable_gqa:
        key, value = (one.expand(-1, query.shape[-3], -1, -1) for one in (key[:, :1], value[:, :1]))
    out: Tensor = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return out


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def watched(module: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Traffic, Traffic, float]:
    """Return the work of forward and of backward, and the bytes kept in between; runs on the meta device."""
    forward, backward = Traffic(), Traffic()
    own = {storage_key(parameter.untyped_storage()) for parameter in module.parameters()}
    saved: dict[int, Tensor] = {}  # keeps the tensors alive, so that no address is reused

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage_key(storage) not in own:
            saved[storage_key(storage)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept), _AsOnGPU(), Watch(forward):
        output = module(*inputs, **named)
    ends = [tensor for tensor in tensors(output) if tensor.requires_grad]
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if ends and wanted:
        gradients = [torch.ones_like(end) for end in ends]
        with Watch(backward):
            torch.autograd.grad(ends, wanted, gradients, allow_unused=True)
    return forward, backward, float(sum(tensor.untyped_storage().nbytes() for tensor in saved.values()))
