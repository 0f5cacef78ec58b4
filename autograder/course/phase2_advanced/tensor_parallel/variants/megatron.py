"""Right: as in Megatron-LM, an autograd function for each collective, and a loss with its backward written by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

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


def bounds(size, group, name="size"):
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0 or size < ranks:
        raise ValueError(f"{name} must be at least {ranks}, got {size}, and group must contain rank {dist.get_rank()}")
    return size * rank // ranks, size * (rank + 1) // ranks


def summed(x, group):
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x, size, group):
    ranks = dist.get_world_size(group)
    padded = x.new_zeros(*x.shape[:-1], -(-size // ranks))
    padded[..., : x.shape[-1]] = x
    rows = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(rows, padded, group)
    return torch.cat([row[..., : size * (r + 1) // ranks - size * r // ranks] for r, row in enumerate(rows)], -1)


def own(x, group):
    begin, end = bounds(x.shape[-1], group)
    return x[..., begin:end].contiguous()


class Copy(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient, ctx.group), None


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Gather(Function):
    @staticmethod
    def forward(ctx, x, size, group):
        ctx.group = group
        return gathered(x, size, group)

    @staticmethod
    def backward(ctx, gradient):
        return own(gradient, ctx.group), None, None


class Scatter(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.size, ctx.group = x.shape[-1], group
        return own(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, ctx.size, ctx.group), None


def copy_to_group(x, group=None):
    return Copy.apply(x, group)


def reduce_from_group(x, group=None):
    return Reduce.apply(x, group)


def gather_from_group(x, group=None, *, size=None):
    return Gather.apply(x, size or x.shape[-1] * dist.get_world_size(group), group)


def scatter_to_group(x, group=None):
    return Scatter.apply(x, group)


class Part(nn.Module):
    @classmethod
    def from_full(cls, module, group=None):
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.take(module, group)
        return layer

    def take(self, module, group):
        self.group, self.shape, self.has_bias = group, tuple(module.weight.shape), False
        self.begin, self.end = bounds(self.shape[self.dim], group, self.name)
        weight = module.weight.detach().narrow(self.dim, self.begin, self.end - self.begin)
        self.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format), module.weight.requires_grad)
        bias = getattr(module, "bias", None)
        if bias is None:
            self.bias = None
        else:
            part = bias.detach()[self.begin : self.end] if self.dim == 0 else bias.detach()
            self.bias = nn.Parameter(part.clone(), bias.requires_grad)

    def to_full(self):
        size = self.shape[self.dim]
        with torch.no_grad():
            weight = gathered(self.weight.movedim(self.dim, -1), size, self.group).movedim(-1, self.dim).contiguous()
            full = self.empty()
            full.weight = nn.Parameter(weight)
            if self.bias is not None:
                bias = gathered(self.bias, size, self.group) if self.dim == 0 else self.bias.clone()
                full.bias = nn.Parameter(bias)
        return full

    def empty(self):
        return nn.Linear(self.shape[1], self.shape[0], self.bias is not None, device="meta")


class ColumnParallelLinear(Part):
    dim, name, gather_output = 0, "out_features", False

    def __init__(self, in_features, out_features, bias=True, gather_output=False, group=None):
        super().__init__()
        self.take(nn.Linear(in_features, out_features, bias), group)
        self.gather_output = gather_output

    def forward(self, x):
        if x.shape[-1] != self.shape[1]:
            raise ValueError(f"x must have {self.shape[1]} elements in its last dimension, got {tuple(x.shape)}")
        out = F.linear(copy_to_group(x, self.group), self.weight, self.bias)
        return gather_from_group(out, self.group, size=self.shape[0]) if self.gather_output else out


class RowParallelLinear(Part):
    dim, name, input_is_parallel = 1, "in_features", True

    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True, group=None):
        super().__init__()
        self.take(nn.Linear(in_features, out_features, bias), group)
        self.input_is_parallel = input_is_parallel

    def forward(self, x):
        if not self.input_is_parallel:
            x = scatter_to_group(x, self.group)
        if x.shape[-1] != self.weight.shape[1]:
            raise ValueError(f"x must have {self.weight.shape[1]} elements in its last dimension, got {tuple(x.shape)}")
        out = reduce_from_group(F.linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias


class VocabParallelEmbedding(Part):
    dim, name = 0, "num_embeddings"

    def __init__(self, num_embeddings, embedding_dim, group=None):
        super().__init__()
        self.take(nn.Embedding(num_embeddings, embedding_dim), group)

    def empty(self):
        return nn.Embedding(*self.shape, device="meta")

    def forward(self, tokens):
        if tokens.numel() and not 0 <= tokens.min() <= tokens.max() < self.shape[0]:
            raise ValueError(f"tokens must be below {self.shape[0]}, got {tokens.min()} to {tokens.max()}")
        elsewhere = (tokens < self.begin) | (tokens >= self.end)
        vectors = F.embedding((tokens - self.begin).masked_fill(elsewhere, 0), self.weight)
        return reduce_from_group(vectors.masked_fill(elsewhere[..., None], 0), self.group)


class Loss(Function):
    @staticmethod
    def forward(ctx, logits, targets, begin, ignore_index, group):
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        shifted = logits - largest[..., None]
        elsewhere = (targets < begin) | (targets >= begin + logits.shape[-1])
        index = (targets - begin).masked_fill(elsewhere, 0)[..., None]
        own = shifted.gather(-1, index)[..., 0].masked_fill(elsewhere, 0)
        exps = shifted.exp_()
        total, own = summed(torch.stack([exps.sum(-1), own]), group)
        kept = targets != ignore_index
        ctx.save_for_backward(exps.div_(total[..., None]), index, elsewhere, kept)
        return (total.log() - own).masked_fill(~kept, 0).sum() / kept.sum()

    @staticmethod
    def backward(ctx, gradient):
        softmax, index, elsewhere, kept = ctx.saved_tensors
        logits = softmax.scatter_add(-1, index, elsewhere[..., None].to(softmax.dtype) - 1)
        return logits * (kept[..., None] * gradient / kept.sum()), None, None, None, None


def vocab_parallel_cross_entropy(logits, targets, vocab_size, group=None, *, ignore_index=-100):
    begin, end = bounds(vocab_size, group, "vocab_size")
    if logits.shape != (*targets.shape, end - begin):
        raise ValueError(f"logits must have shape {(*targets.shape, end - begin)}, got {tuple(logits.shape)}")
    if ((targets != ignore_index) & ((targets < 0) | (targets >= vocab_size))).any():
        raise ValueError(f"targets must be below {vocab_size}, got {targets.tolist()}")
    return Loss.apply(logits, targets, begin, ignore_index, group)


class TensorParallelTransformer(nn.Module):
    def __init__(self, hidden_size, num_heads, group=None, causal=True):
        if num_heads < 1 or hidden_size % num_heads:
            raise ValueError(f"num_heads must divide {hidden_size}, got {num_heads}")
        self.take(Block(GPTConfig(heads=num_heads, width=hidden_size, causal=causal)), group)

    @classmethod
    def from_full(cls, module, group=None):
        block = cls.__new__(cls)
        block.take(module, group)
        return block

    def take(self, whole, group):
        super().__init__()
        attention, mlp = whole.attention, whole.mlp
        self.width, self.head_width, self.causal = attention.qkv.weight.shape[1], attention.head_width, attention.causal
        if self.width // self.head_width % dist.get_world_size(group):
            raise ValueError(f"num_heads must be a multiple of the ranks, got {self.width // self.head_width}")
        self.norm_attention, self.norm_mlp = nn.LayerNorm(self.width), nn.LayerNorm(self.width)
        self.norm_attention.load_state_dict(whole.norm_attention.state_dict())
        self.norm_mlp.load_state_dict(whole.norm_mlp.state_dict())
        self.qkv = ColumnParallelLinear.from_full(attention.qkv, group)
        self.out = RowParallelLinear.from_full(attention.out, group)
        self.up = ColumnParallelLinear.from_full(mlp.up, group)
        self.down = RowParallelLinear.from_full(mlp.down, group)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm_attention(x))
        heads = qkv.shape[-1] // (3 * self.head_width)
        query, key, value = qkv.view(batch, length, heads, 3, self.head_width).transpose(1, 2).unbind(3)
        scores = query @ key.transpose(-1, -2) / self.head_width**0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, heads * self.head_width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))

    def to_full(self):
        full = Block(GPTConfig(heads=self.width // self.head_width, width=self.width, causal=self.causal))
        full.norm_attention.load_state_dict(self.norm_attention.state_dict())
        full.norm_mlp.load_state_dict(self.norm_mlp.state_dict())
        full.attention.qkv, full.attention.out = self.qkv.to_full(), self.out.to_full()
        full.mlp.up, full.mlp.down = self.up.to_full(), self.down.to_full()
        return full
