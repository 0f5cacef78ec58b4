"""The solution of hierarchical_allreduce: equal to the library on any nodes, and its rings for any placement."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, virtual
from labkit.exercises import load
from labkit.hardware import topology

EXERCISE = catalogue.find("hierarchical_allreduce")
SOURCE = EXERCISE.source("solution")[0]

# the library's all-reduce over the ranks on nodes, on the same inputs; runs on the ranks
BESIDE_THE_LIBRARY = """
import torch
import torch.distributed as dist
from labkit.exercises import hierarchical_allreduce

dist.init_process_group({backend!r})
generator = torch.Generator().manual_seed({seed} + dist.get_rank())
tensor = torch.randint(-4, 5, {shape}, generator=generator).to(torch.{dtype})
expected, members = tensor.clone(), dist.new_group({members})
intra, inter = hierarchical_allreduce.build_node_groups({nodes})
same = equal = True
if intra is not None:
    dist.all_reduce(expected, dist.ReduceOp.{op}, members)
    result = hierarchical_allreduce.hierarchical_all_reduce(
        tensor, intra, inter, op=dist.ReduceOp.{op}, chunks={chunks}
    )
    same, equal = result is tensor, torch.allclose(tensor, expected)
[same, equal]
"""


@st.composite
def placements(draw: Any) -> tuple[int, list[list[int]]]:
    """Draw a world size and each node's ranks; some ranks may be on no node."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    world_size = sum(sizes) + draw(st.integers(0, 1))
    order = draw(st.permutations(range(world_size)))
    return world_size, [sorted(order[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))]


@settings(max_examples=15)
@given(
    placement=placements(),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    dtype_and_op=st.sampled_from([("float32", "AVG"), ("float64", "SUM"), ("bfloat16", "MAX"), ("int64", "PRODUCT")]),
    chunks=st.integers(1, 5),
    backend=st.sampled_from(["gloo", "nccl"]),
    seed=st.integers(0, 2**31),
)
def test_the_solution_equals_the_library(
    placement: tuple[int, list[list[int]]],
    shape: tuple[int, ...],
    dtype_and_op: tuple[str, str],
    chunks: int,
    backend: str,
    seed: int,
) -> None:
    world_size, nodes = placement
    cell = BESIDE_THE_LIBRARY.format(
        backend=backend, seed=seed, shape=shape, dtype=dtype_and_op[0], op=dtype_and_op[1], chunks=chunks, nodes=nodes,
        members=sorted(rank for node in nodes for rank in node),
    )  # fmt: skip
    run = virtual(nproc_per_node=world_size).run(
        Job(source=cell, modules={EXERCISE.name: SOURCE}, timeout=BROKEN_SECONDS)
    )
    assert run.raise_if_failed().values == [[True, True]] * world_size


GROUPS_MADE_BY_HAND = """
import torch, torch.distributed as dist
from labkit.exercises import hierarchical_allreduce

dist.init_process_group()
rank = dist.get_rank()
nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
places = [dist.new_group([0, 2]), dist.new_group([1, 3])]
tensor = torch.full((5,), 10.0**rank)
hierarchical_allreduce.hierarchical_all_reduce(tensor, nodes[rank // 2], places[rank % 2], op=dist.ReduceOp.AVG)
"""


def test_groups_of_equal_nodes_may_be_made_by_hand() -> None:
    run = virtual(nproc_per_node=4).run(
        Job(source=GROUPS_MADE_BY_HAND, modules={EXERCISE.name: SOURCE}, timeout=BROKEN_SECONDS)
    )
    assert all(torch.equal(value, torch.full((5,), 1111 / 4)) for value in run.raise_if_failed().values)


@given(placed=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=24))
def test_rings_cross_few_borders_and_use_all_cards(placed: list[tuple[int, int]]) -> None:
    rings = load(EXERCISE, SOURCE).plan_ring(placed)
    nodes = {node for node, _ in placed}
    cards = {node: {card for at, card in placed if at == node} for node in nodes}
    assert len(rings) == max(map(len, cards.values()))
    used: dict[str, set[tuple[int, int]]] = {"in": set(), "out": set()}
    for ring in rings:
        assert sorted(ring) == list(range(len(placed)))
        crossed = [(placed[a], placed[b]) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
        crossed = [(a, b) for a, b in crossed if a[0] != b[0]]
        assert len(crossed) == (len(nodes) if len(nodes) > 1 else 0)
        used["out"] |= {a for a, _ in crossed}
        used["in"] |= {b for _, b in crossed}
    if len(nodes) > 1:
        assert used["in"] == used["out"] == set(placed)


def test_a_cluster_is_a_topology() -> None:
    rings = load(EXERCISE, SOURCE).plan_ring(topology(nnodes=2, nproc_per_node=4, nics_per_node=2))
    assert rings == [[0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 0, 1, 6, 7, 4, 5]]
