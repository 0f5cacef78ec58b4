"""The ring exercise's special properties; test_rubrics.py covers what applies to every exercise."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, virtual
from labkit.checks import Ranks, Submission, run_checks, visible_rubric

EXERCISE = catalogue.Exercise("phase3_multi_node/ring_allreduce")
SOLUTION = EXERCISE.paths["solution"].read_text()

# The library's own functions next to the learner's, on the same inputs; runs on the ranks.
BESIDE_THE_LIBRARY = """
import torch
import torch.distributed as dist
from labkit.exercises import ring_allreduce

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed({seed} + rank)
tensor = torch.randint(-4, 5, {shape}, generator=generator).to(torch.{dtype})
expected, shard_of = tensor.clone(), tensor.clone()
op = dist.ReduceOp.{op}
dist.all_reduce(expected, op)
result = ring_allreduce.ring_all_reduce(tensor, op)
shard = ring_allreduce.ring_reduce_scatter(shard_of)
gathered = ring_allreduce.ring_all_gather(shard).numel() if {even} else 0
[result is tensor, torch.equal(result, expected), shard.numel(), gathered]
"""


@settings(max_examples=25)
@given(
    world_size=st.integers(1, 9),
    shape=st.lists(st.integers(0, 13), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "int64", "int32", "uint8"]),
    op=st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
    seed=st.integers(0, 2**31),
)
def test_the_solution_equals_the_library(
    world_size: int, shape: tuple[int, ...], dtype: str, op: str, seed: int
) -> None:
    numel = torch.Size(shape).numel()
    even = numel % world_size == 0
    cell = BESIDE_THE_LIBRARY.format(seed=seed, shape=shape, dtype=dtype, op=op, even=even)
    job = Job(source=cell, modules={EXERCISE.name: SOLUTION}, timeout=BROKEN_SECONDS)
    run = virtual(nproc_per_node=world_size).run(job).raise_if_failed()
    length = -(-numel // world_size)
    for rank, (same, equal, shard, gathered) in enumerate(run.values):
        assert same and equal
        assert shard == max(0, min(length, numel - rank * length))
        assert gathered == (numel if even else 0)


def test_a_visible_check_shows_which_chunk_is_wrong() -> None:
    source = SOLUTION.replace("shards[ring.rank].copy_(own)", "shards[ring.rank].copy_(own * (ring.rank != 1))")
    report = run_checks(visible_rubric(EXERCISE), Submission(EXERCISE, source), Ranks())
    gathered = report.results[1]
    assert gathered.picture is not None
    assert gathered.picture.wrong == [[False, True, False, False]] * 4
    assert "on rank 0: 2 at element 2 of 8" in gathered.expected
