"""Tensor parallelism: each rank holds a part of every weight matrix and computes a part of every layer.

Of two consecutive matrices, the first is cut into columns of outputs, the second into rows of inputs. Each rank
applies its rows of the second to its own outputs of the first, and one all-reduce completes the pair. Attention and MLP
are such pairs, so a transformer block takes two all-reduces forward and two backward (Shoeybi et al. 2019). Torch
stores a weight as (outputs, inputs). The given parts have the layers' `__init__`, `from_full` and `to_full`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase2_advanced.tensor_parallel.given import parts as parts
from labkit.course.phase2_advanced.tensor_parallel.given.layers import BlockPart, ColumnPart, RowPart, VocabPart
from labkit.course.phase2_advanced.tensor_parallel.given.parts import all_gather_parts, apply_in_group, part_of
from labkit.models.gpt import Block, GPTConfig

__all__ = [
    "ColumnParallelLinear", "RowParallelLinear", "TensorParallelTransformer", "VocabParallelEmbedding", "copy_to_group",
    "gather_from_group", "reduce_from_group", "scatter_to_group", "vocab_parallel_cross_entropy",
]  # fmt: skip


def copy_to_group(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return x, the same on every rank, as the input of each rank's part of a layer.

    Backward: each part has its own gradient of x, and x's gradient is their sum.
    """
    return apply_in_group(_Copy, x, group)


def reduce_from_group(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the sum of x over the group, the same on every rank; x stays unchanged. Backward: the gradient itself."""
    return apply_in_group(_Reduce, x, group)


def gather_from_group(x: Tensor, group: ProcessGroup | None = None, *, size: int | None = None) -> Tensor:
    """Return all ranks' parts x, (..., part), as one (..., size), equal ones by default. Backward: this rank's part."""
    size = x.shape[-1] * dist.get_world_size(group) if size is None else size
    parts.check_own_part(x, size, group)
    return apply_in_group(_Gather, x, size, group)


def scatter_to_group(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of x, which is (..., size) and the same on all ranks. Backward: all parts' gradients."""
    return apply_in_group(_Scatter, x, group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, group: ProcessGroup | None) -> Tensor:
        ctx.group = group  # given, as an example
        return all_gather_parts(x, size, group)  # (..., part) -> (..., size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return scatter_to_group(gradient, ctx.group), None, None  # for x, size and group


# TODO 1. The other three: complete `forward`, and write `backward` as in `_Gather`. Each function mirrors another one.
# `dist.all_reduce` works in place, on a contiguous tensor; the caller may still need the tensor that it passed to you.
class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return reduce_from_group(gradient, ctx.group), None
        ### END SOLUTION


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
        ### END SOLUTION


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.size, ctx.group = x.shape[-1], group
        return x[..., part_of(ctx.size, group)]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gather_from_group(gradient, ctx.group, size=ctx.size), None
        ### END SOLUTION


class ColumnParallelLinear(ColumnPart):
    """`nn.Linear` with its outputs divided over the ranks: each rank holds some rows of torch's weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., this rank's outputs), or all if `gather_output`. x: (..., in_features), equal on all ranks."""
        parts.check_last_dimension(x, self.whole_shape[1])
        # given, as an example: every rank uses all of x, so x's gradient is a sum; the outputs need no message
        own = F.linear(copy_to_group(x, self.group), self.weight, self.bias)
        return gather_from_group(own, self.group, size=self.whole_shape[0]) if self.gather_output else own


class RowParallelLinear(RowPart):
    """`nn.Linear` with its inputs divided over the ranks: each rank holds some columns of torch's weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., out_features), the same on every rank. One all-reduce; none backward if `input_is_parallel`.

        x: (..., this rank's inputs); unless `input_is_parallel`, all inputs, the same on every rank.
        """
        parts.check_last_dimension(x, self.weight.shape[1] if self.input_is_parallel else self.whole_shape[1])
        # TODO 2. Each rank's product is one term of a sum. How often may the bias be in that sum? It may also be None.
        ### BEGIN SOLUTION
        own = x if self.input_is_parallel else scatter_to_group(x, self.group)
        out = reduce_from_group(F.linear(own, self.weight), self.group)
        return out if self.bias is None else out + self.bias
        ### END SOLUTION


class VocabParallelEmbedding(VocabPart):
    """`nn.Embedding` with its rows divided over the ranks: each rank holds the vectors of some tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (..., embedding_dim), the same on every rank, as tokens (...) are. One all-reduce, none backward."""
        parts.check_below("tokens", tokens, self.whole_shape[0])
        # given, as an example: a token's vector is on one rank, and all others add zeros
        part = part_of(self.whole_shape[0], self.group)
        here = (tokens >= part.start) & (tokens < part.stop)
        vectors = F.embedding(torch.where(here, tokens - part.start, 0), self.weight)  # (..., embedding_dim)
        return reduce_from_group(torch.where(here[..., None], vectors, 0), self.group)


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, vocab_size: int, group: ProcessGroup | None = None, *, ignore_index: int = -100
) -> Tensor:
    """Return the mean `F.cross_entropy` of logits whose vocabulary is divided over the ranks, the same on every rank.

    logits: (..., part), this rank's part of `vocab_size`; -inf masks a token, or a whole part. targets: (...), of the
    whole vocabulary, the same on every rank; `ignore_index` is left out of the mean. Two all-reduces, of one and of two
    numbers for each target; none backward. Returns a scalar, at least float32. Raises ValueError if sizes do not fit.
    """
    parts.check_targets(targets, logits, vocab_size, group, ignore_index)
    part, kept = part_of(vocab_size, group), targets != ignore_index
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # TODO 3. `losses`, one for each target: the logarithm of the sum of exp(logit) over the whole vocabulary, less the
    # target's own logit. exp(100) is too large for float32, so first subtract the largest logit of all ranks (MAX, no
    # gradient) from every logit: the loss stays the same. Then the ranks' sums and the target's logit, which is on one
    # rank only, travel in one message: `torch.stack`. Compare `VocabParallelEmbedding.forward`.
    ### BEGIN SOLUTION
    largest = wide.detach().amax(-1)  # (...), like targets
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    shifted = wide - largest[..., None]
    here = (targets >= part.start) & (targets < part.stop)
    own = shifted.gather(-1, torch.where(here, targets - part.start, 0)[..., None])[..., 0]
    sums = torch.stack([shifted.exp().sum(-1), torch.where(here, own, 0)])  # (2, ...)
    total, target = reduce_from_group(sums, group)
    losses = total.log() - target
    ### END SOLUTION
    return torch.where(kept, losses, 0).sum() / kept.sum()


class TensorParallelTransformer(BlockPart):
    """`labkit.models.gpt.Block` with 1/N of the heads and of the MLP on each rank, and the norms on every rank."""

    columns, rows = ColumnParallelLinear, RowParallelLinear  # columns of `qkv` and `up`, rows of `out` and `down`

    @staticmethod
    def whole(hidden_size: int, num_heads: int, causal: bool) -> Block:
        return Block(GPTConfig(heads=num_heads, width=hidden_size, causal=causal))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, hidden_size) in and out, the same on every rank. Two all-reduces, and two backward."""
        parts.check_last_dimension(x, self.hidden_size)
        # TODO 4. As in `Block`, `Attention` and `MLP` of `labkit.models.gpt`. This block itself has `norm_attention`,
        # `qkv`, `out`, `norm_mlp`, `up`, `down`, `head_width` and `causal`. `self.qkv` returns this rank's heads, one
        # after the other, each with its query, key and value: how many heads is that? An empty batch is valid, too.
        ### BEGIN SOLUTION
        heads = self.qkv(self.norm_attention(x)).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = heads.permute(3, 0, 2, 1, 4)  # each (batch, heads / N, length, head_width)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))  # `out` takes (batch, length, hidden_size / N)
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        return out
        ### END SOLUTION
