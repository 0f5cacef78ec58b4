"""The solution of collectives compared with the library, on random sizes, shapes, dtypes and operations."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, virtual

EXERCISE = catalogue.Exercise("phase1_data_parallel/collectives")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

BESIDE_THE_LIBRARY = """
import torch
import torch.distributed as dist
from labkit.exercises import collectives

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed({seed} + rank)
tensor = torch.randint(-4, 5, {shape}, generator=generator).to(torch.{dtype})
op, root = dist.ReduceOp.{op}, {root}
expected, sent = tensor.clone(), tensor.clone()
dist.all_reduce(expected, op)
dist.broadcast(sent, root)
rows = [torch.empty_like(tensor) for _ in range(size)]
dist.all_gather(rows, tensor)

found = []
for name in ("all_reduce_naive", "all_reduce_tree", "all_reduce_recursive_doubling"):
    mine = tensor.clone()
    found.append(getattr(collectives, name)(mine, op) is mine and torch.equal(mine, expected))
found.append(torch.equal(collectives.broadcast(tensor.clone(), root), sent))
reduced = collectives.reduce(tensor.clone(), root, op)
found.append(rank != root or torch.equal(reduced, expected))
found.append(torch.equal(collectives.all_gather(tensor), torch.stack(rows)))
found
"""


@settings(max_examples=12)
@given(
    world_size=st.integers(1, 9),
    root=st.integers(0, 8),
    shape=st.lists(st.integers(0, 7), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "int64", "int32", "uint8"]),
    op=st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
    seed=st.integers(0, 2**31),
)
def test_the_solution_equals_the_library(
    world_size: int, root: int, shape: tuple[int, ...], dtype: str, op: str, seed: int
) -> None:
    cell = BESIDE_THE_LIBRARY.format(root=root % world_size, shape=shape, dtype=dtype, op=op, seed=seed)
    run = (
        virtual(nproc_per_node=world_size)
        .run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
        .raise_if_failed()
    )
    assert all(all(found) for found in run.values), run.values


FROZEN_AND_TIED = """
import torch
import torch.distributed as dist
from labkit.exercises import collectives

dist.init_process_group()
rank = dist.get_rank()
layer = torch.nn.Linear(3, 3)
layer.bias.requires_grad_(False)
torch.nn.init.constant_(layer.weight, float(rank))
collectives.all_reduce_tree(layer.weight)
collectives.broadcast(layer.bias, 2)
[layer.weight.unique().tolist(), layer.weight.requires_grad, layer.weight.grad_fn is None, layer.bias.tolist()]
"""


def test_parameters_are_changed_in_place_without_a_trace_in_the_graph() -> None:
    run = virtual(nproc_per_node=3).run(Job(source=FROZEN_AND_TIED, modules=MODULES)).raise_if_failed()
    assert all(value[:3] == [[3.0], True, True] for value in run.values)
    assert run.values[0][3] == run.values[1][3] == run.values[2][3]
