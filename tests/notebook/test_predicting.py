"""Sliders over a prediction: they show results of `predict`, and the reason for invalid values."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from labkit.hardware import topology
from labkit.notebook.predicting import ask, explore
from labkit.predict import Plan, model, predict
from labkit.units import duration

CHOSEN: dict[str, Any] = {
    "model": "gpt-1.3b", "cluster": "dgx-a100", "nodes": 2, "tensor": 2, "pipeline": 1, "microbatch": 2,
    "microbatches": 4, "zero": 1, "recompute": "none", "precision": "bf16",
}  # fmt: skip


def test_the_answer_is_the_prediction() -> None:
    plan = Plan(64, 2, 8, 2, zero=1, sequence_parallel=True)
    made, studies = ask(CHOSEN)
    assert made == predict(model("gpt-1.3b"), plan, topology("dgx-a100", nnodes=2))
    grows, stays = studies.values()
    assert [point.gpus for point in grows] == [8 << power for power in range(11)]
    # 8 samples on each of 2 nodes: 16 nodes have one for each rank, 32 do not
    assert [point.gpus for point in stays] == [8, 16, 32, 64, 128]
    of_these = [point.step_seconds for points in studies.values() for point in points if point.gpus == 16]
    assert of_these == [made.step_seconds] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pipeline": 64}, "tensor x pipeline = 2 x 64 = 128 must divide 16 GPUs"),
        ({"model": "resnet50"}, "tensor parallelism is predicted for transformers"),
        ({"precision": "fp8"}, "fp8 needs tensor cores that have it"),
    ],
)
def test_what_cannot_be_says_why(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        ask({**CHOSEN, **change})


def test_each_slider_draws_anew_and_what_cannot_be_keeps_the_last_picture() -> None:
    box = explore("gpt-1.3b", nodes=2)
    grid, shown = box.children
    controls = {control.description: control for control in grid.children}
    assert {"model", "cluster", "nodes", "tensor", "pipeline", "microbatches", "recompute", "precision", "ZeRO"} < {
        *controls
    }
    seen = [shown.value]
    for name, value in (
        ("ZeRO", 1), ("tensor", 2), ("pipeline", 2), ("microbatches", 16), ("recompute", "full"), ("precision", "fp32"),
        ("nodes", 8), ("microbatch", 2), ("model", "gpt-6.7b"), ("cluster", "dgx-h100"),
    ):  # fmt: skip
        controls[name].value = value
        assert shown.value not in seen, name
        seen.append(shown.value)
    chosen = {**{name: control.value for name, control in controls.items()}, "zero": controls["ZeRO"].value}
    assert duration(ask(chosen).made.step_seconds) + " a step of 512 samples on 64 GPUs" in shown.value
    assert f"90% of measured steps take {duration(ask(chosen).made.step_range.low)} to" in shown.value
    last = shown.value[shown.value.index("<svg") :]
    controls["pipeline"].value = 64
    assert "Not possible:</b> tensor x pipeline = 2 x 64 = 128 must divide 64 GPUs" in shown.value
    assert shown.value.endswith(last) and "opacity:0.4" in shown.value
    controls["pipeline"].value = 2
    assert shown.value == seen[-1]


def test_what_does_not_fit_is_said_in_the_headline() -> None:
    box = explore("gpt-175b", nodes=1)
    grid, shown = box.children
    assert "It does not fit" in shown.value
    for control in grid.children:
        if control.description in ("nodes", "recompute"):
            control.value = {"nodes": 64, "recompute": "full"}[control.description]
    assert "fit" not in shown.value
    assert "e+0" not in explore("gpt-1t", nodes=1).children[1].value, "thousands of GB are written out"


def test_unknown_names_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="did you mean gpt-13b"):
        explore("gpt-13")
    with pytest.raises(ValueError, match="power of two up to 2048, got 3"):
        explore(nodes=3)


def test_the_first_picture_waits_for_no_large_library() -> None:
    program = (
        "import sys\n"
        "from labkit.notebook import explore\n"
        "assert '<svg' in explore().children[1].value\n"
        "print(sorted({'torch', 'matplotlib', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"
