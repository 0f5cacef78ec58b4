"""Parts of layers: which parameters each rank of a group holds, cut out of whole layers and put together again.

The plumbing of the exercise `tensor_parallel`, whose classes add `forward`.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from labkit.course.arguments import multiple_of, require
from labkit.course.phase2_advanced.tensor_parallel.given.parts import all_gather_parts, part_of


class LayerPart(nn.Module):
    """This rank's part of a layer, cut out of the whole layer, so that N ranks start from the values of one process."""

    cuts: ClassVar[dict[str, int | None]]
    """Dimension along which each parameter is cut; None: every rank holds all of it."""
    cut_size: ClassVar[str]
    """Name of the size that is divided over the ranks."""
    group: ProcessGroup | None
    whole_shape: torch.Size
    """Shape of the whole weight."""
    weight: nn.Parameter
    bias: nn.Parameter | None

    @classmethod
    def from_full(cls, module: nn.Module, group: ProcessGroup | None = None) -> Self:
        """Return this rank's part of `module`, a layer of any class with such a weight, with or without a bias.

        Copies this rank's part and reads nothing else. dtype, device and `requires_grad` stay the same.
        """
        layer = cls.__new__(cls)
        layer._cut(module, group)
        return layer

    def _cut(self, whole: Any, group: ProcessGroup | None) -> None:
        super().__init__()
        self.group, self.whole_shape = group, whole.weight.shape
        for name, dim in self.cuts.items():
            if (parameter := getattr(whole, name, None)) is not None:
                part = slice(None) if dim is None else part_of(parameter.shape[dim], group, name=self.cut_size)
                values = parameter.detach().movedim(dim or 0, 0)[part].movedim(0, dim or 0)
                # a view would keep the whole parameter in memory
                parameter = nn.Parameter(values.clone(memory_format=torch.contiguous_format), parameter.requires_grad)
            self.register_parameter(name, parameter)

    def to_full(self) -> Any:
        """Return the whole layer, `nn.Linear` or `nn.Embedding`, with copies of all parameters, on every rank.

        All ranks must call this.
        """
        full: nn.Module = nn.Embedding(*self.whole_shape, device="meta")  # type: ignore[misc]  # two sizes
        if "bias" in self.cuts:
            full = nn.Linear(self.whole_shape[1], self.whole_shape[0], bias=self.bias is not None, device="meta")
        for name, own in self.named_parameters():
            values, dim = own.detach().clone(), self.cuts[name]
            if dim is not None:
                whole = all_gather_parts(values.movedim(dim, -1), self.whole_shape[dim], self.group)
                values = whole.movedim(-1, dim).contiguous()
            setattr(full, name, nn.Parameter(values, own.requires_grad))
        return full


class ColumnPart(LayerPart):
    """This rank's outputs of an `nn.Linear`: some rows of torch's weight, and their biases.

    in_features, out_features: of the whole layer; the number of ranks need not divide out_features. gather_output:
    whether `forward` returns all outputs instead of this rank's. Initialized as `nn.Linear` is, from torch's random
    numbers: use the same seed on all ranks. Raises `ValueError` if out_features leaves a rank without outputs.
    """

    cuts: ClassVar[dict[str, int | None]] = {"weight": 0, "bias": 0}
    cut_size: ClassVar[str] = "out_features"
    gather_output = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        gather_output: bool = False,
        group: ProcessGroup | None = None,
    ) -> None:
        self._cut(nn.Linear(in_features, out_features, bias), group)
        self.gather_output = gather_output


class RowPart(LayerPart):
    """This rank's inputs of an `nn.Linear`: some columns of torch's weight. Every rank holds the whole bias.

    in_features, out_features: of the whole layer; the number of ranks need not divide in_features. input_is_parallel:
    whether `forward` takes this rank's inputs only, as a column-parallel layer returns them. Initialized as
    `nn.Linear` is: use the same seed on all ranks. Raises `ValueError` if in_features leaves a rank without inputs.
    """

    cuts: ClassVar[dict[str, int | None]] = {"weight": 1, "bias": None}
    cut_size: ClassVar[str] = "in_features"
    input_is_parallel = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
        group: ProcessGroup | None = None,
    ) -> None:
        self._cut(nn.Linear(in_features, out_features, bias), group)
        self.input_is_parallel = input_is_parallel


class VocabPart(LayerPart):
    """This rank's tokens of an `nn.Embedding`: some rows of its weight.

    num_embeddings: of the whole vocabulary; the number of ranks need not divide it. Initialized as `nn.Embedding` is:
    use the same seed on all ranks. Raises `ValueError` if num_embeddings leaves a rank without tokens.
    """

    cuts: ClassVar[dict[str, int | None]] = {"weight": 0}
    cut_size: ClassVar[str] = "num_embeddings"

    def __init__(self, num_embeddings: int, embedding_dim: int, group: ProcessGroup | None = None) -> None:
        self._cut(nn.Embedding(num_embeddings, embedding_dim), group)


class BlockPart(nn.Module):
    """This rank's part of a transformer block that is built like `labkit.models.gpt.Block`.

    Each rank holds 1/N of the heads and of the MLP: columns of `qkv` and `up`, rows of `out` and `down`. All ranks hold
    the norms, and the biases of `out` and `down`. Initialized as the whole block is: use the same seed on all ranks. A
    rank briefly holds the whole block. causal: tokens cannot attend to later ones. Raises `ValueError` unless
    num_heads divides hidden_size and the number of ranks divides num_heads. Attributes: `norm_attention`, `qkv`, `out`,
    `norm_mlp`, `up`, `down`; `hidden_size`, `num_heads`, `head_width`, `causal`, of the whole block.
    """

    columns: ClassVar[type[ColumnPart]]
    """Class of `qkv` and `up`."""
    rows: ClassVar[type[RowPart]]
    """Class of `out` and `down`."""

    def __init__(
        self, hidden_size: int, num_heads: int, group: ProcessGroup | None = None, causal: bool = True
    ) -> None:
        if num_heads < 1 or hidden_size % num_heads:
            raise ValueError(f"num_heads must divide hidden_size {hidden_size}, got {num_heads}")
        self._cut(self.whole(hidden_size, num_heads, causal), group)

    @staticmethod
    def whole(hidden_size: int, num_heads: int, causal: bool) -> Any:
        """Return a whole block on the current device."""
        raise NotImplementedError

    @classmethod
    def from_full(cls, module: nn.Module, group: ProcessGroup | None = None) -> Self:
        """Return this rank's part of `module`, a block that is built like `Block`; its norms may be of any class."""
        block = cls.__new__(cls)
        block._cut(module, group)
        block.norm_attention, block.norm_mlp = copy.deepcopy(block.norm_attention), copy.deepcopy(block.norm_mlp)
        return block

    def _cut(self, whole: Any, group: ProcessGroup | None) -> None:
        super().__init__()
        self.hidden_size, self.head_width = whole.attention.qkv.weight.shape[1], whole.attention.head_width
        self.num_heads = self.hidden_size // self.head_width
        self.causal = getattr(whole.attention, "causal", True)
        require("num_heads", self.num_heads, multiple_of(dist.get_world_size(group), "the ranks of the group"))
        self.norm_attention, self.norm_mlp = whole.norm_attention, whole.norm_mlp
        self.qkv = self.columns.from_full(whole.attention.qkv, group)
        self.out = self.rows.from_full(whole.attention.out, group)
        self.up = self.columns.from_full(whole.mlp.up, group)
        self.down = self.rows.from_full(whole.mlp.down, group)

    def to_full(self) -> Any:
        """Return the whole block, with copies of all parameters, on every rank. All ranks must call this."""
        with torch.device("meta"):
            full = self.whole(self.hidden_size, self.num_heads, self.causal)
        full.norm_attention, full.norm_mlp = copy.deepcopy(self.norm_attention), copy.deepcopy(self.norm_mlp)
        full.attention.qkv, full.attention.out = self.qkv.to_full(), self.out.to_full()
        full.mlp.up, full.mlp.down = self.up.to_full(), self.down.to_full()
        return full
