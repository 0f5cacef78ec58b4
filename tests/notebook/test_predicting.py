"""Sliders over a prediction: what they show follows from `predict`, and what cannot be says why."""

from __future__ import annotations

import pytest

from labkit.hardware import topology
from labkit.notebook.predicting import explore, page
from labkit.predict import Plan, model, predict

CHOSEN = {
    "model": "gpt-1.3b", "cluster": "dgx-a100", "nodes": 2, "tensor": 2, "pipeline": 1, "microbatch": 2,
    "microbatches": 4, "zero": 1, "recompute": "none",
}  # fmt: skip


def test_the_page_shows_the_prediction() -> None:
    plan = Plan(64, 2, 8, 2, zero=1, sequence_parallel=True)
    made = predict(model("gpt-1.3b"), plan, topology("dgx-a100", nnodes=2))
    shown = page(CHOSEN)
    assert f"{made.step_seconds:.3g} s a step of 64 samples on 16 GPUs" in shown
    assert f"activations {made.memory.activations / 1e9:.3g} GB" in shown
    assert "weak scaling efficiency" in shown and "100% at 8" in shown
    assert shown.count("role='img'") == shown.count("aria-label=") == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pipeline": 64}, "tensor x pipeline = 128 must divide 16 GPUs"),
        ({"zero": 3, "pipeline": 2}, "zero 3 with pipeline 2"),
        ({"model": "resnet50"}, "tensor parallelism is predicted for transformers"),
    ],
)
def test_what_cannot_be_says_why(change: dict[str, object], said: str) -> None:
    shown = page({**CHOSEN, **change})
    assert "Not possible" in shown and said in shown


def test_a_model_that_does_not_fit_is_said_to() -> None:
    assert "does not fit" in page({**CHOSEN, "model": "gpt-175b"})


def test_moving_a_slider_draws_anew() -> None:
    box = explore("gpt-1.3b")
    controls, shown = box.children
    before = shown.value
    next(control for control in controls.children if control.description == "tensor").value = 4
    assert shown.value != before
    assert "samples on 32 GPUs" in before and "samples on 32 GPUs" in shown.value
