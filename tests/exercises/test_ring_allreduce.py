"""The ring exercise: its solution, its rubrics, its mutants, on virtual ranks and on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.judge import Judge
from autograder.sandbox import Sandbox
from labkit import Job, exercises, virtual
from labkit.checks import Ranks, Report, Rubric, Submission, load_rubric, run_checks, visible_rubric

EXERCISE = exercises.Exercise("phase3_multi_node/ring_allreduce")
HIDDEN = load_rubric(EXERCISE, exercises.root() / "autograder/rubrics/phase3_multi_node/ring_allreduce.py")
SOLUTION = EXERCISE.paths["solution"].read_text()

sandboxed = pytest.mark.skipif(not Sandbox().available, reason="needs bubblewrap")


def judged(rubric: Rubric, source: str, cluster: str = "virtual", timeout: float = 20.0) -> Report:
    return run_checks(rubric, Submission(EXERCISE, source), Ranks(cluster, timeout))


def graded(source: str) -> Report:
    """By the hidden rubric, as submissions are: in a sandbox, on ranks that are processes."""
    with Judge(Sandbox()) as judge:
        return judge.judge(EXERCISE, source)


def lost(rubric: Rubric, report: Report) -> set[str]:
    return {check.name for check, result in zip(rubric.checks, report.results, strict=True) if not result.passed}


# The library's own functions beside the learner's, on the same inputs; runs on the ranks.
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


@settings(max_examples=25, deadline=None)
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
    job = Job(source=cell, modules={EXERCISE.name: SOLUTION}, timeout=60)
    run = virtual(nproc_per_node=world_size).run(job).raise_if_failed()
    length = -(-numel // world_size)
    for rank, (same, equal, shard, gathered) in enumerate(run.values):
        assert same and equal
        assert shard == max(0, min(length, numel - rank * length))
        assert gathered == (numel if even else 0)


@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_the_solution_passes_the_visible_checks(cluster: str) -> None:
    report = judged(visible_rubric(EXERCISE), SOLUTION, cluster)
    assert report.passed and not any(r.skipped for r in report.results), report.text()


@sandboxed
def test_the_solution_gets_full_marks() -> None:
    report = graded(SOLUTION)
    assert report.passed and report.earned == 25, report.text()


@sandboxed
def test_the_template_gets_nothing() -> None:
    template = EXERCISE.paths["template"].read_text()
    assert judged(visible_rubric(EXERCISE), template).earned == graded(template).earned == 0


def test_both_rubrics_are_on_one_scale() -> None:
    """Plain nbgrader, without the judge, records what the visible checks gave."""
    assert visible_rubric(EXERCISE).points == HIDDEN.points == 25
    assert len(visible_rubric(EXERCISE).checks) == 8
    assert len(visible_rubric(EXERCISE).hints) == 4


@sandboxed
@pytest.mark.parametrize("path", HIDDEN.variant_paths, ids=lambda path: path.stem)
def test_other_right_rings_get_full_marks(path: Path) -> None:
    for report in (judged(visible_rubric(EXERCISE), path.read_text()), graded(path.read_text())):
        assert report.passed, report.text()


def test_every_mutant_is_named_and_there() -> None:
    folder = HIDDEN.mutant_path("any").parent
    assert sorted(HIDDEN.mutants) == sorted(path.stem for path in folder.glob("*.py"))
    names = {check.name for check in HIDDEN.checks}
    for name, mutant in HIDDEN.mutants.items():
        assert mutant.loses <= names
        assert mutant.marks == sum(c.points for c in HIDDEN.checks if c.name not in mutant.loses), name


@sandboxed
@pytest.mark.parametrize("name", HIDDEN.mutants)
def test_a_mutant_loses_what_it_should_and_keeps_the_rest(name: str) -> None:
    report = graded(HIDDEN.mutant_path(name).read_text())
    assert lost(HIDDEN, report) == HIDDEN.mutants[name].loses, report.text()
    assert report.earned == HIDDEN.mutants[name].marks


def test_a_visible_check_shows_which_chunk_is_wrong() -> None:
    source = SOLUTION.replace("shards[ring.rank].copy_(own)", "shards[ring.rank].copy_(own * (ring.rank != 1))")
    report = judged(visible_rubric(EXERCISE), source)
    gathered = report.results[2]
    assert gathered.picture is not None
    assert gathered.picture.wrong == [[False, True, False, False]] * 4
    assert "on rank 0: 2 at element 2 of 8" in gathered.expected
