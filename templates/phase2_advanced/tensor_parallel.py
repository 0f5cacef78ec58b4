"""Tensor parallelism: every rank holds a part of each matrix and computes a part of each layer (Shoeybi et al. 2019).

Of two matrices in a row, the first is cut into columns of outputs, the second into rows of inputs: the second works on
what the first gives on the same rank, and one sum over the ranks ends the pair. Attention and MLP are such pairs, so a
transformer block has two all-reduces forward and two backward. Torch stores a weight as (outputs, inputs).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.models.gpt import Block, GPTConfig

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "TensorParallelTransformer",
    "VocabParallelEmbedding",
    "copy_to_group",
    "gather_from_group",
    "reduce_from_group",
    "scatter_to_group",
    "vocab_parallel_cross_entropy",
]


def copy_to_group(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Let what all ranks hold alike go into the parts of a layer. x: any shape, the same on every rank.

    Forward nothing happens. Backward each part has its own gradient of x, and x's is their sum.
    """
    return _across("copy", x, 0, group)


def reduce_from_group(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The sum of x over the group, on every rank. x: any shape; it is left as it is.

    What follows is the same on every rank, so each has the sum's whole gradient, and that is x's gradient, too.
    """
    return _across("reduce", x, 0, group)


def gather_from_group(x: Tensor, group: ProcessGroup | None = None, *, size: int | None = None) -> Tensor:
    """The ranks' parts of the last dimension put together, on every rank. Backward: this rank's part of the gradient.

    x: (..., part), this rank's part of `size` as in `part_of`; without `size` all parts are as large as this one.
    """
    size = x.shape[-1] * dist.get_world_size(group) if size is None else size
    _check_last(x, _length(part_of(size, group)))
    return _across("gather", x, size, group)


def scatter_to_group(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """This rank's part of the last dimension, as in `part_of`. Backward: all ranks' gradients put together.

    x: (..., size), the same on every rank.
    """
    return _across("scatter", x, x.shape[-1], group)


_Step = Callable[[Tensor], Tensor]


class _Pair(torch.autograd.Function):
    """Does one thing on the way forward, and another with the gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: _Step, backward: _Step) -> Tensor:
        ctx.step_back = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.step_back(gradient), None, None


def _across(kind: str, x: Tensor, size: int, group: ProcessGroup | None) -> Tensor:
    """What the four functions above do; size: of the whole last dimension, where that is cut."""
    part = part_of(size, group) if size else slice(None)
    _place(group)

    def same(tensor: Tensor) -> Tensor:
        return tensor

    def own_part(tensor: Tensor) -> Tensor:
        return tensor[..., part]

    def whole(tensor: Tensor) -> Tensor:
        return _all_gathered(tensor, size, group)

    # TODO 1. `summed(tensor)`: a new tensor with the sum over the group. `dist.all_reduce` works in place, on a
    # contiguous tensor; somebody else may still need the one that you are given. Then `steps`: for each kind "copy",
    # "reduce", "gather" and "scatter" what happens forward and what happens backward. Each kind mirrors another.
    # YOUR CODE HERE
    raise NotImplementedError()
    out: Tensor = _Pair.apply(x, *steps[kind])  # type: ignore[no-untyped-call]  # torch leaves it so
    return out


class _Part(nn.Module):
    """This rank's part of a layer. Cut out of the whole one, so that N ranks begin with what one would begin with."""

    cuts: ClassVar[dict[str, int | None]]
    """For each parameter the dimension that is cut; None: every rank has all of it."""
    cut_size: ClassVar[str]
    """What the size that is cut is called."""
    whole_shape: torch.Size
    """Of the weight."""
    weight: nn.Parameter
    bias: nn.Parameter | None

    @classmethod
    def from_full(cls, module: nn.Module, group: ProcessGroup | None = None) -> Self:
        """This rank's part of `module`, a layer of any class with such a weight, and with a bias or without.

        Copies what is this rank's, and reads nothing else of it. dtype, device and `requires_grad` stay.
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
                # a view would keep all of the whole one alive
                parameter = nn.Parameter(values.clone(memory_format=torch.contiguous_format), parameter.requires_grad)
            self.register_parameter(name, parameter)

    def to_full(self) -> Any:
        """The whole layer, `nn.Linear` or `nn.Embedding`, on every rank, of copies. All ranks must call it."""
        full: nn.Module = nn.Embedding(*self.whole_shape, device="meta")  # type: ignore[misc]  # two sizes
        if "bias" in self.cuts:
            full = nn.Linear(self.whole_shape[1], self.whole_shape[0], bias=self.bias is not None, device="meta")
        for name, own in self.named_parameters():
            values, dim = own.detach().clone(), self.cuts[name]
            if dim is not None:
                whole = _all_gathered(values.movedim(dim, -1), self.whole_shape[dim], self.group)
                values = whole.movedim(-1, dim).contiguous()
            setattr(full, name, nn.Parameter(values, own.requires_grad))
        return full


class ColumnParallelLinear(_Part):
    """`nn.Linear` whose outputs are dealt out: this rank has some rows of torch's weight, and their biases.

    in_features, out_features: of the whole layer; out_features need not divide. gather_output: every rank gets all
    outputs, instead of its own. Drawn from torch's random numbers as `nn.Linear` is: seed all ranks alike.
    Raises ValueError when out_features leaves a rank without any.
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

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features), the same on every rank. Returns (..., this rank's outputs), or all of them."""
        _check_last(x, self.whole_shape[1])
        # given, as an example: every rank works on all of x, so x's gradient is a sum; outputs need no message
        own = F.linear(copy_to_group(x, self.group), self.weight, self.bias)
        return gather_from_group(own, self.group, size=self.whole_shape[0]) if self.gather_output else own


class RowParallelLinear(_Part):
    """`nn.Linear` whose inputs are dealt out: this rank has some columns of torch's weight. All ranks have the bias.

    in_features, out_features: of the whole layer; in_features need not divide. input_is_parallel: `forward` is given
    this rank's inputs only, as a column-parallel layer leaves them. Drawn as `nn.Linear` is: seed all ranks alike.
    Raises ValueError when in_features leaves a rank without any.
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

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., this rank's inputs); unless `input_is_parallel` all of them, the same on every rank.

        Returns (..., out_features), the same on every rank. One all-reduce; none backward when `input_is_parallel`.
        """
        _check_last(x, self.weight.shape[1] if self.input_is_parallel else self.whole_shape[1])
        # TODO 2. Each rank's product is one part of a sum. How often may the bias be in that sum?
        # YOUR CODE HERE
        raise NotImplementedError()


class VocabParallelEmbedding(_Part):
    """`nn.Embedding` whose rows are dealt out: this rank has the vectors of some tokens.

    num_embeddings: of the whole vocabulary; it need not divide. Drawn as `nn.Embedding` is: seed all ranks alike.
    Raises ValueError when num_embeddings leaves a rank without any.
    """

    cuts: ClassVar[dict[str, int | None]] = {"weight": 0}
    cut_size: ClassVar[str] = "num_embeddings"

    def __init__(self, num_embeddings: int, embedding_dim: int, group: ProcessGroup | None = None) -> None:
        self._cut(nn.Embedding(num_embeddings, embedding_dim), group)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: whole numbers below num_embeddings, any shape, the same on every rank. Returns (..., embedding_dim).

        One all-reduce, none backward. Tokens on a GPU are not checked: reading them would make the host wait.
        """
        _check_below("tokens", tokens, self.whole_shape[0])
        # given, as an example: a token's vector is on one rank, all others add zeros
        part = part_of(self.whole_shape[0], self.group)
        here = (tokens >= part.start) & (tokens < part.stop)
        vectors = F.embedding(torch.where(here, tokens - part.start, 0), self.weight)
        return reduce_from_group(torch.where(here[..., None], vectors, 0), self.group)


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, vocab_size: int, group: ProcessGroup | None = None, *, ignore_index: int = -100
) -> Tensor:
    """`F.cross_entropy` of logits whose vocabulary is dealt out: the mean over targets, the same on every rank.

    logits: (..., part), this rank's part of `vocab_size` as in `part_of`; -inf masks a token, and may mask all of a
    rank's part. targets: (...), the same on every rank, of the whole vocabulary; `ignore_index` is left out of the
    mean. Returns a scalar of at least float32. Two all-reduces, of a number and of two numbers for each target; none
    backward, where each rank gets its own logits' gradient.
    Raises ValueError, before any message, when sizes do not fit or a target on the CPU is none of the vocabulary.
    """
    part = part_of(vocab_size, group, name="vocab_size")
    if logits.shape != (*targets.shape, _length(part)):
        raise ValueError(
            f"logits must have shape {(*targets.shape, _length(part))}, as targets and this rank's part of "
            f"{vocab_size} have it, got {tuple(logits.shape)}"
        )
    kept = targets != ignore_index
    _check_below("targets", torch.where(kept, targets, 0), vocab_size)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))

    # TODO 3. `losses`, one for each target: the logarithm of the sum of exp(logit) over the whole vocabulary, less the
    # target's own logit. exp(100) is too large for float32, so take the largest logit of all ranks (MAX, no gradient)
    # from every logit first: the loss stays the same. Then the ranks' sums and the target's logit, which is on one rank
    # only, travel in one message: `torch.stack`. Compare `VocabParallelEmbedding.forward`.
    # YOUR CODE HERE
    raise NotImplementedError()

    return torch.where(kept, losses, 0).sum() / kept.sum()


class TensorParallelTransformer(nn.Module):
    """A transformer block cut over the ranks: `labkit.models.gpt.Block`, layer norms first, with biases.

    Each rank has num_heads / N heads and 1/N of the MLP; norms and the biases after a sum are everywhere, and stay
    equal. Drawn as `Block` is, so seed all ranks alike; a rank has the whole block for that moment. causal: a token
    sees none that comes after it.
    Raises ValueError unless num_heads divides hidden_size and the number of ranks divides num_heads.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, group: ProcessGroup | None = None, causal: bool = True
    ) -> None:
        if num_heads < 1 or hidden_size % num_heads:
            raise ValueError(f"num_heads must divide hidden_size {hidden_size}, got {num_heads}")
        self._cut(Block(GPTConfig(heads=num_heads, width=hidden_size, causal=causal)), group)

    @classmethod
    def from_full(cls, module: nn.Module, group: ProcessGroup | None = None) -> Self:
        """This rank's part of a block made like `labkit.models.gpt.Block`; its norms may be of any class."""
        block = cls.__new__(cls)
        block._cut(module, group)
        block.norm_attention, block.norm_mlp = copy.deepcopy(block.norm_attention), copy.deepcopy(block.norm_mlp)
        return block

    def _cut(self, whole: Any, group: ProcessGroup | None) -> None:
        super().__init__()
        self.hidden_size, self.head_width = whole.attention.qkv.weight.shape[1], whole.attention.head_width
        self.num_heads = self.hidden_size // self.head_width
        self.causal = getattr(whole.attention, "causal", True)
        if self.num_heads % (ranks := dist.get_world_size(group)):
            raise ValueError(f"num_heads must be a multiple of the {ranks} ranks, got {self.num_heads}")
        self.norm_attention, self.norm_mlp = whole.norm_attention, whole.norm_mlp
        self.qkv = ColumnParallelLinear.from_full(whole.attention.qkv, group)
        self.out = RowParallelLinear.from_full(whole.attention.out, group)
        self.up = ColumnParallelLinear.from_full(whole.mlp.up, group)
        self.down = RowParallelLinear.from_full(whole.mlp.down, group)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, hidden_size) in and out, the same on every rank. Two all-reduces, and two backward."""
        _check_last(x, self.hidden_size)
        # TODO 4. As in `Block`, `Attention` and `MLP` of `labkit.models.gpt`. `self.qkv` gives this rank's heads, one
        # after the other, each with its query, key and value: how many heads are that here? An empty batch is one, too.
        # YOUR CODE HERE
        raise NotImplementedError()

    def to_full(self) -> Block:
        """The whole block, on every rank; all ranks must call it. Its parameters are copies."""
        with torch.device("meta"):
            full = Block(GPTConfig(heads=self.num_heads, width=self.hidden_size, causal=self.causal))
        full.norm_attention, full.norm_mlp = copy.deepcopy(self.norm_attention), copy.deepcopy(self.norm_mlp)
        full.attention.qkv, full.attention.out = self.qkv.to_full(), self.out.to_full()
        full.mlp.up, full.mlp.down = self.up.to_full(), self.down.to_full()
        return full


def part_of(size: int, group: ProcessGroup | None = None, rank: int | None = None, *, name: str = "size") -> slice:
    """Which of `size` rows or columns a rank of the group has; this rank, when `rank` is None.

    In the order of the ranks, as even as can be: with 10 on 4 ranks 2, 3, 2 and 3. Raises ValueError, which calls the
    size `name`, when a rank would have none, and when this rank is not in the group.
    """
    own, ranks = _place(group)
    if size < ranks:
        raise ValueError(f"{name} must be at least {ranks}, one for each rank, got {size}")
    rank = own if rank is None else rank
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def _place(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank in the group, and how many there are."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
    return dist.get_rank(group), dist.get_world_size(group)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _all_gathered(own: Tensor, size: int, group: ProcessGroup | None) -> Tensor:
    """Every rank's (..., part) put together, (..., size). Parts travel at one length, the longest one's."""
    ranks = dist.get_world_size(group)
    sent = F.pad(own, (0, -(-size // ranks) - own.shape[-1])).contiguous()
    parts = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(parts, sent, group)
    return torch.cat([part[..., : _length(part_of(size, group, rank))] for rank, part in enumerate(parts)], dim=-1)


def _check_last(x: Tensor, size: int) -> None:
    if not x.dim() or x.shape[-1] != size:
        raise ValueError(f"x must have {size} elements in its last dimension, got shape {tuple(x.shape)}")


def _check_below(name: str, numbers: Tensor, limit: int) -> None:
    """Where that costs nothing: on the CPU, and not where tensors have shapes only."""
    if type(numbers) is Tensor and numbers.device.type == "cpu" and numbers.numel():
        wrong = numbers[(numbers < 0) | (numbers >= limit)]
        if wrong.numel():
            raise ValueError(f"{name} must be 0 or more and below {limit}, got {wrong[0].item()}")
