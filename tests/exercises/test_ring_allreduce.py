"""The ring exercise: its solution, its rubrics, its mutants, on virtual ranks and on real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import Job, exercises, virtual
from labkit.checks import Ranks, Report, Rubric, Submission, load_rubric, run_checks, visible_rubric

EXERCISE = exercises.Exercise("phase3_multi_node/ring_allreduce")
HIDDEN = load_rubric(EXERCISE, exercises.root() / "autograder/rubrics/phase3_multi_node/ring_allreduce.py")
TRAFFIC = {"bytes_sent", "bytes_uneven", "neighbours", "messages"}
SOLUTION = EXERCISE.paths["solution"].read_text()


def judged(rubric: Rubric, source: str, cluster: str = "virtual", timeout: float = 20.0) -> Report:
    return run_checks(rubric, Submission(EXERCISE, source), Ranks(cluster, timeout))


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
@pytest.mark.parametrize("rubric", [visible_rubric(EXERCISE), HIDDEN], ids=["visible", "hidden"])
def test_the_solution_gets_full_marks(rubric: Rubric, cluster: str) -> None:
    report = judged(rubric, SOLUTION, cluster)
    assert report.passed, report.text()
    # time is judged where it is modelled
    assert [r.title for r in report.results if r.skipped] == (
        ["all links of the ring are busy at once"] if cluster == "local" and rubric is HIDDEN else []
    )


@pytest.mark.parametrize("rubric", [visible_rubric(EXERCISE), HIDDEN], ids=["visible", "hidden"])
def test_the_template_gets_nothing(rubric: Rubric) -> None:
    assert judged(rubric, EXERCISE.paths["template"].read_text()).earned == 0


def test_both_rubrics_are_on_one_scale() -> None:
    """Plain nbgrader, without the judge, records what the visible checks gave."""
    assert visible_rubric(EXERCISE).points == HIDDEN.points == 25
    assert len(visible_rubric(EXERCISE).checks) == 8
    assert len(visible_rubric(EXERCISE).hints) == 4


@pytest.mark.parametrize("path", HIDDEN.variant_paths, ids=lambda path: path.stem)
def test_other_right_rings_get_full_marks(path: Path) -> None:
    for rubric in (visible_rubric(EXERCISE), HIDDEN):
        report = judged(rubric, path.read_text())
        assert report.passed, report.text()


def test_every_mutant_is_named_and_there() -> None:
    folder = HIDDEN.mutant_path("any").parent
    assert sorted(HIDDEN.mutants) == sorted(path.stem for path in folder.glob("*.py"))
    names = {check.name for check in HIDDEN.checks}
    for name, mutant in HIDDEN.mutants.items():
        assert mutant.loses <= names
        assert mutant.marks == sum(c.points for c in HIDDEN.checks if c.name not in mutant.loses), name


@pytest.mark.parametrize("name", HIDDEN.mutants)
def test_a_mutant_loses_what_it_should_and_keeps_the_rest(name: str) -> None:
    report = judged(HIDDEN, HIDDEN.mutant_path(name).read_text())
    assert lost(HIDDEN, report) == HIDDEN.mutants[name].loses, report.text()
    assert report.earned == HIDDEN.mutants[name].marks


@pytest.mark.parametrize("name", HIDDEN.mutants)
def test_a_mutant_loses_the_same_traffic_marks_on_real_processes(name: str) -> None:
    traffic = replace(HIDDEN, checks=[check for check in HIDDEN.checks if check.name in TRAFFIC])
    report = judged(traffic, HIDDEN.mutant_path(name).read_text(), "local", timeout=6)
    assert lost(traffic, report) == HIDDEN.mutants[name].loses & TRAFFIC, report.text()


def test_a_visible_check_shows_which_chunk_is_wrong() -> None:
    source = SOLUTION.replace("shards[ring.rank].copy_(own)", "shards[ring.rank].copy_(own * (ring.rank != 1))")
    report = judged(visible_rubric(EXERCISE), source)
    gathered = report.results[2]
    assert gathered.picture is not None
    assert gathered.picture.wrong == [[False, True, False, False]] * 4
    assert "on rank 0: 2 at element 2 of 8" in gathered.expected
