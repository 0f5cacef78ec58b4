"""Cost data of torch's operators: whether a GPU works for it, its FLOPs, the bytes it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from labkit.torch_versions.dispatch import function_without_wrapper, is_composite, schema_of
from labkit.torch_versions.tensors import coo_parts

_FREE = {
    # other views of the same data, although the schema does not say so
    "_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "set_",
    # only allocations: nothing is written
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip
_READS_NOTHING_OF_FIRST = {
    # their first tensor gives a shape, or is overwritten completely
    "ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_ones", "new_zeros", "new_full",
    "copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "trunc_normal_",
    "_foreach_copy_", "_foreach_zero_",
}  # fmt: skip
_WORKS_WITHOUT_TENSORS = {"_local_scalar_dense", "equal", "is_nonzero"}
_CREATES = {"empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "normal"}
"""Operators whose first argument is a size; one that no GPU could hold is refused before the host tries."""
_COMMUNICATION = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}


_DENSE = torch.strided


class Operator:
    """Cost data of one operator, looked up once."""

    __slots__ = (
        "attention", "by_offset", "call", "communicates", "composite", "creates", "flops", "free", "fresh", "grows",
        "moves", "name", "reads_first", "reshapes", "rewrites", "seeded", "without_tensors",
    )  # fmt: skip

    def __init__(self, function: Any) -> None:
        schema = schema_of(function)
        self.name: str = schema.name.split("::")[1]
        self.call: Callable[..., Any] = (
            _device if function is torch.ops.prim.device.default else function_without_wrapper(function)
        )
        """The operator without its Python wrapper."""
        self.communicates = function.namespace in _COMMUNICATION
        self.composite = function.namespace == "aten" and is_composite(function)
        """Whether it is made of other operators; only inference mode shows it whole."""
        tags = set(function.tags)
        self.seeded = torch.Tag.nondeterministic_seeded in tags
        """Whether it draws random numbers."""
        outputs = any(a.is_out for a in schema.arguments)  # torch.Tag.out says the same from 2.12 on
        self.reshapes = self.name in ("resize_", "resize_as_", "set_")
        """Whether an argument tensor has another shape or other memory afterwards."""
        self.grows = outputs or self.reshapes
        """Whether an argument tensor may have other memory afterwards."""
        self.by_offset = self.name.startswith("as_strided") or self.name == "view"
        """Whether a view may begin at a varying distance, in elements, from its argument."""
        written = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
        tensors = [r for r in schema.returns if "Tensor" in str(r.type)]
        views = [r for r in tensors if r.alias_info is not None and not r.alias_info.is_write]
        self.free = (
            self.communicates
            or self.name in _FREE
            or torch.Tag.inplace_view in tags
            or (bool(tensors) and len(views) == len(tensors))
            or not (tensors or written or self.name in _WORKS_WITHOUT_TENSORS)
        )
        """Whether it costs no GPU time."""
        self.fresh = any(r.alias_info is None for r in tensors) and self.name != "_unsafe_view"
        """Whether it may return tensors with memory of their own."""
        self.without_tensors = self.free and not tensors and not written
        """Whether it neither returns nor changes a tensor."""
        self.creates = self.name in _CREATES
        self.rewrites = () if tensors else tuple((i, schema.arguments[i].name) for i in written)
        """Arguments, by number and name, that it writes and does not return."""
        self.moves = _MOVES.get(self.name)
        """Function for the bytes that it reads and writes, if the general rule does not apply."""
        self.reads_first = self.name not in _READS_NOTHING_OF_FIRST
        self.attention = _ATTENTION.get(self.name, 0.0)
        """Rate of attention in one kernel, as a fraction of the forward's rate. 0: not such a kernel."""
        self.flops: Callable[..., int] | None = None
        if function.namespace == "aten":
            packet = function.overloadpacket
            self.flops = flop_registry.get(packet) or _CPU_ATTENTION.get(self.name)


def _device(tensor: Any) -> Any:
    """Ask a fake tensor for its own device, which avoids torch's dispatch through all modes at each query."""
    return tensor.fake_device if hasattr(tensor, "fake_device") else torch.ops.prim.device.default(tensor)


def _look_up(args: Any, output: Any) -> int:
    """Bytes of a lookup, which reads as much of a table as it returns, and the indices."""
    return 2 * nbytes(output) + sum(map(nbytes, args[1:]))


def _add_to_rows(args: Any, output: Any) -> int:
    """Bytes of an addition to rows of the first argument: only these are read and written."""
    return 3 * nbytes(args[-1]) + sum(map(nbytes, args[1:-1]))


def _adam(args: Any, output: Any) -> int:
    """Bytes of one kernel: it reads gradients, reads and writes parameters and moments (the schema: writes all)."""
    parameters, gradients, *moments = args[:5]
    return nbytes(gradients) + 2 * (nbytes(parameters) + sum(map(nbytes, moments)))


_MOVES: dict[str, Callable[[Any, Any], int]] = {
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _look_up),
    **dict.fromkeys(("index_add_", "index_copy_", "scatter_", "scatter_add_"), _add_to_rows),
    # one value of each row is read; backward writes a whole table of zeros
    "nll_loss_forward": lambda args, output: 2 * nbytes(args[1]),
    "nll_loss_backward": lambda args, output: nbytes(output) + nbytes(args[2]),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), _adam),
    # FSDP's shard, copied to its place in the buffer that the others will fill
    "all_gather_copy_in": lambda args, output: 2 * nbytes(args[0]),
}


def nbytes(argument: Any) -> int:
    """Bytes of a tensor, or of the tensors of a list; 0 for anything else."""
    if isinstance(argument, Tensor):
        return argument.nbytes if argument.layout is _DENSE else _nbytes_of_sparse(argument)
    return sum(map(nbytes, argument)) if isinstance(argument, (list, tuple)) else 0


def _nbytes_of_sparse(tensor: Tensor) -> int:
    """Bytes of the indices and values."""
    if tensor.layout is torch.sparse_coo:
        parts = coo_parts(tensor)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    else:
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return sum(part.nbytes for part in parts)


def _seen(query: Any, key: Any, dropout_p: float = 0.0, is_causal: bool = False) -> float:
    """Fraction of all query-key pairs that a kernel computes: it skips those that a causal mask excludes."""
    queries, keys = int(query.shape[-2]), int(key.shape[-2])
    if not is_causal:
        return 1.0
    square = min(queries, keys)
    return (square * (square + 1) / 2 + (queries - square) * keys) / (queries * keys)


def _attention(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> int:
    flops = sdpa_flop_count(query.shape, key.shape, value.shape)
    return int(flops * _seen(query, key, *rest, **_known(options)))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, *rest: Any,
                        **options: Any) -> int:  # fmt: skip
    flops = sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)
    return int(flops * _seen(query, key, *rest, **_known(options)))


def _known(options: Any) -> Any:
    return {name: value for name, value in options.items() if name in ("dropout_p", "is_causal")}


_CPU_ATTENTION: dict[str, Callable[..., int]] = {
    # flash attention on CPUs; torch's table has the GPU's
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
_ATTENTION = dict(zip(_CPU_ATTENTION, (1.0, 0.8), strict=True))
"""Rate of backward over forward as in FlashAttention-2's figures (arXiv 2307.08691, figures 5 and 6)."""

known: dict[int, Operator] = {}
"""Known operators, by the id of torch's own object, which lives as long as the process."""


def operator(function: Any) -> Operator:
    """Cost data of `function`, a `torch.ops.NAMESPACE.NAME.OVERLOAD`."""
    cost = known.get(id(function))
    if cost is None:
        cost = known[id(function)] = Operator(function)
    return cost
