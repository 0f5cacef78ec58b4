"""The solution of context_parallel equals attention in one process, on virtual and local ranks, in both layouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.torch_versions.attention import attention_backward, attention_forward

EXERCISE = catalogue.find("context_parallel")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

# attention over ranks and in one process; all results and gradients, merged, must be equal
BESIDE_ONE_PROCESS = """
import torch, torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from labkit.exercises import context_parallel as cp

dist.init_process_group({backend!r})
torch.manual_seed({seed})
ranks, dtype = dist.get_world_size(), torch.{dtype}
kv_heads = {kv_heads} * ranks if {kv_heads} else 1
q, k, v, gradient = (
    torch.randn({batch}, heads, {tokens} * ranks, {width}).to(dtype)
    for heads in ({heads} * 2 * ranks, kv_heads, kv_heads, {heads} * 2 * ranks)
)
inputs = [q, k, v]
whole = [x.clone().double().requires_grad_() for x in inputs]
wanted = scaled_dot_product_attention(*whole, is_causal={causal}, enable_gqa=True)
wanted.backward(gradient.double())
errors = []
for attention in (cp.ring_attention, cp.gather_attention, cp.ulysses_attention):
    for layout in ("zigzag", "contiguous"):
        own = [cp.split_sequence(x, None, layout, 2).clone().requires_grad_() for x in inputs]
        out = attention(*own, None, {causal}, layout)
        out.backward(cp.split_sequence(gradient, None, layout, 2))
        pairs = [(out, wanted), *((part.grad, one.grad) for part, one in zip(own, whole))]
        assert all(part.dtype == dtype for part, _ in pairs)
        merged = [cp.merge_sequence(part, None, layout, 2).double() for part, _ in pairs]
        # of a gradient that nearly cancels, rounding leaves little: the largest of all is the measure
        largest = max(one.abs().max() for _, one in pairs)
        errors += [float((seen - one).abs().max() / largest) for seen, (_, one) in zip(merged, pairs)]
max(errors)
"""
CLOSE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.03}


@settings(max_examples=8)
@given(
    world_size=st.integers(1, 5),
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    kv_heads=st.integers(0, 2),
    tokens=st.sampled_from([2, 4, 6, 34]),
    width=st.sampled_from([1, 8, 12]),
    dtype=st.sampled_from(list(CLOSE)),
    causal=st.booleans(),
    backend=st.sampled_from(["gloo", "nccl"]),
    seed=st.integers(0, 2**31),
)
def test_the_solution_equals_one_process(world_size: int, dtype: str, **how: object) -> None:
    cell = BESIDE_ONE_PROCESS.format(dtype=dtype, **how)
    run = virtual(nproc_per_node=world_size).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert max(run.raise_if_failed().values) < CLOSE[dtype]


def test_local_ranks_compute_the_same() -> None:
    how = {
        "batch": 1,
        "heads": 1,
        "kv_heads": 0,
        "tokens": 6,
        "width": 8,
        "dtype": "float32",
        "causal": True,
        "seed": 0,
    }
    cell = BESIDE_ONE_PROCESS.format(backend="gloo", **how)
    run = local(nproc_per_node=3).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert max(run.raise_if_failed().values) < CLOSE["float32"]


# a million tokens; only shapes are computed
MILLION = """
import torch, torch.distributed as dist
import labkit
from labkit.exercises import context_parallel as cp

dist.init_process_group("nccl")
q, k, v = (torch.empty(1, 4, 2**20 // dist.get_world_size(), 128, dtype=torch.bfloat16) for _ in range(3))
cp.ring_attention(q, k, v).shape, labkit.max_memory_allocated() / q.nbytes
"""


def test_a_million_tokens_fit() -> None:
    run = virtual("dgx-h100", nnodes=1, fake=True).run(Job(source=MILLION, modules=MODULES, timeout=BROKEN_SECONDS))
    for shape, tensors in run.raise_if_failed().values:
        assert shape == torch.Size([1, 4, 2**17, 128])
        # q, k, v, two blocks in transit, the result in float32 twice and in bfloat16; the scores would be 65,536
        assert tensors < 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpus_take_kernels_that_return_the_logsumexp(dtype: torch.dtype) -> None:
    # shapes only: this machine may have no GPU, and only the CPU has a kernel of its own
    q, k, v = (torch.empty(2, 3, tokens, 16, dtype=dtype, device="meta") for tokens in (40, 24, 24))
    out, lse = attention_forward(q, k, v, False)
    assert (out.shape, out.dtype, lse.shape) == (q.shape, dtype, (2, 3, 40))
    gradients = attention_backward(out, q, k, v, out, lse, False)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]
