"""Predictions against runs on virtual ranks: closed forms against every operator and message, no shared timing.

The cases are those of benchmarks/predict_beside_virtual.py at 8 ranks, with fewer steps and layers; the benchmark has 8
to 64 ranks. Predictions use the virtual cluster's own figures, none of them fitted.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "predict_beside_virtual.py"


def _benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("predict_beside_virtual", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look there for their types
    spec.loader.exec_module(module)
    return module


beside = _benchmark()
CASES = {case.name: case for case in beside.cases([8]) if case.name != "3d"}


@pytest.mark.parametrize("name", CASES)
def test_step_time_and_memory_agree(name: str) -> None:
    case = CASES[name]
    if case.pipeline > 2:  # four stages show what eight do
        case = replace(case, ranks=4, pipeline=4, layers=4, microbatches=case.microbatches // 2)
    elif case.name == "mixed GPUs":
        case = replace(case, ranks=4, per_node=2)
    elif case.pipeline == 1:
        case = replace(case, layers=2)
    result = beside.held_beside(case)
    said = {part: f"{run * 1e3:.1f} ms, {predicted * 1e3:.1f}" for part, (run, predicted) in result.parts.items()}
    print(f"{result.step * 1e3:.1f} ms {result.step_error:+.1%}, {result.memory / 1e9:.2f} GB", said, result.held)
    assert abs(result.memory_error) < 0.03
    assert abs(result.step_error) < 0.05
    for run, predicted in result.parts.values():
        assert abs(predicted - run) < 0.05 * result.step


def test_the_program_trains_alike_in_every_layout() -> None:
    """The same losses, with numbers, as on one rank: predictions are compared with a correct program."""
    small = {"layers": 2, "heads": 4, "width": 32, "vocab": 64, "sequence": 16}
    layouts = [
        beside.Case("one", ranks=1, microbatch=4, **small),
        beside.Case("zero-2", ranks=2, microbatch=1, microbatches=2, zero=2, **small),
        beside.Case("3d", ranks=8, microbatch=1, microbatches=2, tensor=2, pipeline=2, zero=1, **small),
    ]
    losses = {}
    for case in layouts:
        told = [value["loss"] for value in beside.train(case, steps=3, exact=True).values if value["loss"]]
        losses[case.name] = [sum(step) / len(told) for step in zip(*told, strict=True)]
    for name, steps in losses.items():
        assert steps == pytest.approx(losses["one"], rel=1e-5), name
    assert losses["one"][0] != losses["one"][-1]


def test_neither_borrows_the_others_timing() -> None:
    root = BENCHMARK.parents[1] / "labkit"
    for folder, other in (("predict", "clusters"), ("clusters", "predict")):
        borrowed = [
            file.name for file in (root / folder).rglob("*.py") if f"labkit.{other}" in file.read_text(encoding="utf-8")
        ]
        assert not borrowed, f"labkit.{folder} uses labkit.{other}: {borrowed}"
