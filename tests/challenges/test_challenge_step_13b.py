"""`labkit challenge step_13b`: what counts, with a small model on four GPUs; and its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.catalogue import root
from labkit.challenges.challenge import BOUND, find
from labkit.challenges.step_13b.layouts import layout_of
from labkit.challenges.step_13b.race import TEMPLATE, bounds, measure
from labkit.challenges.step_13b.trainings import PUBLISHED, Training, drawn
from labkit.predict import Transformer

SMALL = Training(
    "small",
    {"gpu": "a100-40gb", "nnodes": 2, "nproc_per_node": 2},
    Transformer("gpt", layers=4, width=1024, heads=8, vocab=4096, sequence=512, tied=True),
    batch=16,
    slowdown={1: 1.5},
    card_share={0: 0.5},
)
GOOD: dict[str, Any] = {
    "data": 8,
    "pipeline": 2,
    "tensor": 2,
    "microbatch": 2,
    "zero": 1,
    "recompute": "none",
}


def test_an_entry_is_measured_and_slower_than_the_bound() -> None:
    (found,) = measure(TEMPLATE, "mine", trainings=[SMALL])
    assert not found.fault
    assert found.value > SMALL.lower_bound()
    assert "data 2, pipeline 1, tensor 2" in found.notes[0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("raise KeyError('links')", "KeyError on rank 0 at challenges/mine.py, line"),
        ("return {}", "plan must return entries data, pipeline, tensor, microbatch, zero, recompute, got []"),
        ("return object()", "plan must return a dictionary, got"),
    ],
)
def test_an_entry_with_a_fault_does_not_count_and_the_fault_is_named(line: str, fault: str) -> None:
    source = TEMPLATE.replace("    tensor = training", f"    {line}\n    tensor = training")
    (found,) = measure(source, "mine", trainings=[SMALL])
    assert fault in found.fault and math.isnan(found.value)


def test_a_plan_that_does_not_fit_does_not_count() -> None:
    """Its slices fit."""
    small = Training("small", {**SMALL.options, "settings": {"gpu.memory_gb": 0.3}}, SMALL.model, batch=16)
    found = measure(TEMPLATE.replace('"full"', '"none"'), "mine", trainings=[small])[0]
    assert "the fullest GPU needs 0." in found.fault and "but has 0.3 GB" in found.fault


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": 4}, "data * pipeline * tensor must be 32, got 16"),
        ({"data": True}, "data must be an integer from 1 to 32, got True"),
        ({"data": 8.0}, "data must be an integer from 1 to 32, got 8.0"),
        ({"microbatch": 0}, "microbatch must be an integer from 1 to 512, got 0"),
        ({"data": 4, "pipeline": 8, "tensor": 1}, "pipeline must be an integer from 1 to 4, got 8"),
        ({"data": 1, "pipeline": 1, "tensor": 32}, "tensor must divide the 40 heads, got 32"),
        ({"microbatch": 3}, "batch 512 must be a multiple of microbatch x data"),
        ({"zero": 3}, "zero must be one of 0, 1, got 3"),
        ({"recompute": ["none"]}, "recompute must be one of 'none', 'full', got ['none']"),
        ({"overlap": True}, "plan must return entries data"),
    ],
    ids=str,
)
def test_an_answer_is_validated(changes: dict[str, Any], message: str) -> None:
    assert layout_of(GOOD, PUBLISHED[0]).ranks == 32
    with pytest.raises(ValueError) as caught:
        layout_of({**GOOD, **changes}, PUBLISHED[0])
    assert message in str(caught.value)


def test_trainings_are_drawn_from_a_seed() -> None:
    assert drawn(7) == drawn(7) != drawn(8)
    assert all(one.cluster.world_size == 32 for one in (*PUBLISHED, *drawn(7), *drawn(8)))


def test_recorded_scores_are_above_the_bounds() -> None:
    rows = {row.name: row.values for row in find("step_13b").standings()}
    assert rows.pop(BOUND) == pytest.approx(bounds())
    assert sorted(rows) == sorted(path.stem for path in (root() / "solutions/challenges/step_13b").glob("*.py"))
    assert all(values[name] > bound for values in rows.values() for name, bound in bounds().items())


@pytest.mark.exhaustive
def test_a_recorded_score_is_that_of_today() -> None:
    source = (root() / "solutions/challenges/step_13b/nodes.py").read_text()
    (found,) = measure(source, "nodes", trainings=PUBLISHED[:1])
    rows = {row.name: row.values for row in find("step_13b").standings()}
    assert found.value == pytest.approx(rows["nodes"][found.instance])
