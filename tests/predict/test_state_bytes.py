"""Bytes of a parameter: one table, and whoever counts them counts the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit import catalogue, exercises
from labkit.hardware import topology
from labkit.predict import STATE_BYTES, Plan, goodput, model, predict
from labkit.predict.costs.memory import states

IMAGES = catalogue.find("image_classification")
MODULES = {one.name: one.source("solution")[0] for one in (*IMAGES.builds_on, IMAGES)}
GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
PRECISIONS = {
    "mixed": {"precision": "bf16"},
    "mixed, fp32 gradients": {"precision": "bf16", "gradients": "fp32"},
    "fp32": {"precision": "fp32"},
    "fp32, in buckets": {"precision": "fp32", "gradient_copies": True},
}


def test_mixed_precision_is_zeros_and_megatrons() -> None:
    """Rajbhandari et al. 2020, section 3.1: 16 bytes. Megatron-Core's distributed optimizer, bf16 parameters and fp32
    gradients: 18 without shards, 6 + 12 / d with."""
    assert [each.total for each in STATE_BYTES.values()] == [16, 18, 16, 20]
    assert [STATE_BYTES["mixed"].held(stage, 8).total for stage in range(4)] == [16, 5.5, 3.75, 2]
    assert STATE_BYTES["mixed, fp32 gradients"].held(1, 8).total == 6 + 12 / 8
    assert 13 * STATE_BYTES["mixed"].held(1, 8).total < 80 < 13 * STATE_BYTES["fp32"].held(1, 8).total


@pytest.mark.parametrize(
    ("precision", "stage"),
    [*((precision, stage) for precision in list(PRECISIONS)[:3] for stage in range(4)), ("fp32, in buckets", 0)],
)
def test_predictions_and_exercise_15_count_alike(precision: str, stage: int) -> None:
    plan = Plan(batch=8, data=8, zero=stage, **PRECISIONS[precision])  # type: ignore[arg-type]
    # FSDP's shards are in fp32, whatever computes
    each = STATE_BYTES["fp32" if stage == 3 else precision]
    with exercises.installed(MODULES):
        from labkit.exercises import zero
    estimate = zero.estimate_memory(13e9, 8, stage, each)["zero_gb"]
    assert sum(states(plan, 13e9)) / 1e9 == pytest.approx(estimate) == pytest.approx(13 * each.held(stage, 8).total)


def test_exercise_25_chooses_ddp_while_the_bytes_of_its_buckets_fit() -> None:
    with exercises.installed(MODULES):
        from labkit.exercises import image_classification
    most = 80e9 / STATE_BYTES["fp32, in buckets"].total
    assert image_classification.choose_strategy(int(most), 8, 80).strategy == "ddp"
    assert image_classification.choose_strategy(int(most) + 1, 8, 80).strategy == "fsdp"


def test_a_checkpoint_has_all_but_the_gradients() -> None:
    cluster = topology("dgx-a100")
    for precision, nbytes in (("bf16", 2 + 12), ("fp32", 4 + 8)):
        made = predict(model("gpt-1.3b"), Plan(8, 1, 8, precision=precision), cluster)  # type: ignore[arg-type]
        wanted = cluster.storage.write_seconds(made.model.parameters * nbytes)
        assert goodput(made).checkpoint_seconds == pytest.approx(wanted)


def test_the_guides_table_is_this_one() -> None:
    rows = re.findall(r"^\| ((?:mixed|fp32)[^|]*) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d., ]*)\|", GUIDE, re.M)
    assert [row[0] for row in rows] == list(STATE_BYTES)
    for name, *numbers, shards in rows:
        each = STATE_BYTES[name]
        assert [float(number) for number in numbers] == [*each, each.total], name
        if shards.strip():
            held = [each.held(stage, 8).total for stage in (1, 2, 3)]
            assert [float(number) for number in shards.split(",")] == held, name
