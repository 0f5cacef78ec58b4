"""The tensor-parallel solution: for all sizes and rank counts, values and gradients equal the whole layers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, local, virtual
from labkit.catalogue import Exercise

EXERCISE = Exercise("phase2_advanced/tensor_parallel")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}


def ranks(world_size: int, source: str, **given: Any) -> list[Any]:
    """Run `source` on virtual ranks, after an assignment for each of `given`."""
    source = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + source
    run = virtual(nproc_per_node=world_size).run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS))
    return run.raise_if_failed().values


WHOLE_AND_PARTS = """
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from labkit.exercises import tensor_parallel as tp

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(seed)
whole = nn.Sequential(
    nn.Embedding(vocab, width), nn.Linear(width, inner), nn.Linear(inner, width, bias=bias), nn.Linear(width, vocab)
).double()
torch.manual_seed(seed)
parts = nn.Sequential(
    tp.VocabParallelEmbedding(vocab, width),
    tp.ColumnParallelLinear(width, inner),
    tp.RowParallelLinear(inner, width, bias),
    tp.ColumnParallelLinear(width, vocab),
).double()
tokens, targets = torch.randint(0, vocab, (2, batch, 3))
targets[:, 0] = -100
wanted = F.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())
seen = tp.vocab_parallel_cross_entropy(parts(tokens), targets, vocab)
torch.testing.assert_close(seen, wanted)
wanted.backward()
seen.backward()
for ours, theirs in zip(parts, whole):
    for name, parameter in ours.to_full().named_parameters():
        torch.testing.assert_close(parameter, theirs.get_parameter(name), rtol=0, atol=0)
    # gradients are put together as weights are
    for parameter in ours.parameters():
        parameter.data = parameter.grad
    for name, gradient in ours.to_full().named_parameters():
        torch.testing.assert_close(gradient.detach(), theirs.get_parameter(name).grad)
"""


@settings(max_examples=5)
@given(
    world_size=st.integers(1, 5),
    vocab=st.integers(5, 23),
    width=st.integers(1, 6),
    inner=st.integers(5, 11),
    batch=st.integers(1, 3),
    bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_parts_are_the_whole(world_size: int, seed: int, **sizes: int) -> None:
    ranks(world_size, WHOLE_AND_PARTS, seed=seed, **sizes)


BLOCK = """
import torch, torch.distributed as dist
from labkit.exercises import tensor_parallel as tp
from labkit.models.gpt import Block, GPTConfig

dist.init_process_group("gloo")
torch.manual_seed(3)
whole = Block(GPTConfig(heads=heads, width=width, causal=causal))
torch.manual_seed(3)
block = tp.TensorParallelTransformer(width, heads, causal=causal)
again = tp.TensorParallelTransformer.from_full(whole).to_full()
for seen in (again, block.to_full()):
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(seen.get_parameter(name), parameter, rtol=0, atol=0)
assert again.attention.causal == causal
x = torch.randn(batch, 5, width)
inputs = [x.clone().requires_grad_() for _ in range(2)]
outputs = [module(inputs_) for module, inputs_ in zip((block, whole), inputs)]
torch.testing.assert_close(*outputs)
for output in outputs:
    output.square().sum().backward()
torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
for name in ("norm_attention", "norm_mlp"):
    torch.testing.assert_close(getattr(block, name).weight.grad, getattr(whole, name).weight.grad)
torch.testing.assert_close(block.down.bias.grad, whole.mlp.down.bias.grad)
# whole blocks share no memory with a rank's part
pointers = {p.data_ptr() for p in tp.TensorParallelTransformer.from_full(whole, None).parameters() if p.numel()}
assert not pointers & {p.data_ptr() for module in (whole, again) for p in module.parameters()}
sum(p.untyped_storage().nbytes() for p in block.parameters())
"""


@pytest.mark.parametrize(("world_size", "heads", "width"), [(1, 3, 6), (2, 4, 8), (3, 6, 24)])
def test_a_block_is_the_plain_one(world_size: int, heads: int, width: int) -> None:
    for causal, batch in ((True, 2), (False, 0)):
        for nbytes in ranks(world_size, BLOCK, heads=heads, width=width, causal=causal, batch=batch):
            # norms, and the biases after a sum, are replicated
            everywhere, cut = 6 * width, 12 * width**2 + 7 * width
            assert nbytes == 4 * (everywhere + cut // world_size)


def test_a_block_on_real_processes() -> None:
    source = "heads, width, causal, batch = 4, 16, True, 2\n" + BLOCK
    local(nproc_per_node=2).run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()


ODD = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import tensor_parallel as tp
from labkit.course.phase2_advanced.tensor_parallel.given.parts import part_of

dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed(0)

# tied: the embedding's part is the head's
embedding, head = tp.VocabParallelEmbedding(7, 4), tp.ColumnParallelLinear(4, 7, bias=False)
head.weight = embedding.weight
whole = nn.Embedding(7, 4)
whole.weight.data = embedding.to_full().weight.data
targets = torch.tensor([6, 0, 3])
tp.vocab_parallel_cross_entropy(head(embedding(targets)), targets, 7).backward()
nn.functional.cross_entropy(whole(targets) @ whole.weight.t(), targets).backward()
part = part_of(7)
torch.testing.assert_close(head.weight.grad, whole.weight.grad[part])

# frozen, bfloat16, strided
linear = nn.Linear(6, 5).bfloat16().requires_grad_(False)
linear.weight.data = linear.weight.t().contiguous().t()
column = tp.ColumnParallelLinear.from_full(linear)
assert not column.weight.requires_grad and column.weight.dtype == torch.bfloat16 and column.weight.is_contiguous()

# masked logits
logits = torch.randn(2, 4, 7)
logits[..., 4:] = -torch.inf
targets = torch.randint(0, 4, (2, 4))
own = logits[..., part].clone().requires_grad_()
loss = tp.vocab_parallel_cross_entropy(own, targets, 7)
loss.backward()
logits.requires_grad_()
wanted = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
wanted.backward()
torch.testing.assert_close(loss, wanted)
torch.testing.assert_close(own.grad, logits.grad[..., part])

# none at all
assert tp.vocab_parallel_cross_entropy(own[:0], targets[:0], 7).isnan()

def refused(function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)

[
    refused(tp.ColumnParallelLinear, 4, 2),
    refused(tp.RowParallelLinear, 2, 4),
    refused(tp.VocabParallelEmbedding, 2, 4),
    refused(tp.TensorParallelTransformer, 8, 4),
    refused(tp.TensorParallelTransformer, 8, 3),
    refused(embedding, torch.tensor([7])),
    refused(column, torch.ones(2, 5)),
    refused(tp.vocab_parallel_cross_entropy, own, targets + 7, 7),
    refused(tp.vocab_parallel_cross_entropy, own, targets, 12),
    refused(tp.gather_from_group, torch.ones(2), None),
]
"""


def test_odd_cases_and_refusals() -> None:
    for refusals in ranks(3, ODD):
        told = [
            "out_features must be at least 3, one for each rank, got 2",
            "in_features must be at least 3, one for each rank, got 2",
            "num_embeddings must be at least 3, one for each rank, got 2",
            "num_heads must be a multiple of 3, the ranks of the group, got 4",
            "num_heads must divide hidden_size 8, got 3",
            "tokens must be integers from 0 to 6, got 7",
            "x must be a tensor of shape (..., 6), got a torch.float32 tensor of shape (2, 5)",
            "targets must be integers from 0 to 6, got",
            "logits must have shape (2, 4, 4)",
        ]
        for refusal, text in zip(refusals, told, strict=False):
            assert refusal and text in refusal
        assert refusals[-1] is None


def test_shapes_are_enough() -> None:
    source = """
import torch, torch.distributed as dist
from labkit.exercises import tensor_parallel as tp

dist.init_process_group()
embedding, head = tp.VocabParallelEmbedding(50_257, 64), tp.ColumnParallelLinear(64, 50_257)
block, tokens = tp.TensorParallelTransformer(64, 16), torch.zeros(2, 8, dtype=torch.int64)
tp.vocab_parallel_cross_entropy(head(block(embedding(tokens))), tokens, 50_257).backward()
"""
    run = virtual(nnodes=2, nproc_per_node=8, fake=True).run(
        Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS)
    )
    counts = run.raise_if_failed().trace.collective_counts(5)
    # embedding 1; block 2 and 2; the head's input 1; the loss 2
    assert counts == {"all_reduce": 8}
    assert torch.get_default_dtype() == torch.float32
