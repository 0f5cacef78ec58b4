"""Nodes with different GPUs: ranks that work together wait for the slowest, and each stage has its own GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.hardware import Topology, topology
from labkit.predict import Plan, Transformer, model, predict, search
from labkit.predict.costs.schedules import split_by_pace

GPT = Transformer("gpt", 16, 2048, 16, 32_000, 1024)
SLOW, FAST = "v100-32gb", "a100-80gb"


def nodes(*gpus: str, count: int | None = None) -> Topology:
    """Return nodes of 8 with these kinds of GPU in turn, on the same links."""
    return topology("dgx-a100", nnodes=count or len(gpus), gpu=list(gpus), host_link="pcie4")


def test_data_parallel_ranks_wait_for_the_slowest_in_whatever_order() -> None:
    plan = Plan(batch=64, microbatch=4, data=16, zero=1)
    slow, fast = (predict(GPT, plan, nodes(gpu, gpu)) for gpu in (SLOW, FAST))
    for order in ((SLOW, FAST), (FAST, SLOW)):
        mixed = predict(GPT, plan, nodes(*order))
        assert mixed.step_seconds == pytest.approx(slow.step_seconds) and mixed.step_seconds > fast.step_seconds
        assert mixed.mfu() == pytest.approx(slow.mfu() * 125 / ((125 + 312) / 2)), "of the GPUs' mean peak"
    images = Plan(batch=1024, microbatch=64, data=16)
    assert predict(model("resnet50"), images, nodes(FAST, SLOW)).step_seconds == pytest.approx(
        predict(model("resnet50"), images, nodes(SLOW, SLOW)).step_seconds
    )


def test_a_kind_that_no_node_has_does_not_count() -> None:
    plan = Plan(batch=64, microbatch=4, data=8)
    one = predict(GPT, plan, nodes(FAST, SLOW, count=1))
    assert one.step_seconds == pytest.approx(predict(GPT, plan, nodes(FAST, FAST, count=1)).step_seconds)
    assert "v100" not in repr(one)


def test_a_stage_has_the_pace_of_its_own_gpus() -> None:
    """Two stages of two nodes: 1F1B takes the slow stage's m microbatches, and idles for one of the fast stage."""
    plan = Plan(batch=64, microbatch=4, data=8, pipeline=2)
    mixed, slow, fast = (predict(GPT, plan, nodes(*gpus)) for gpus in ((FAST, SLOW), (SLOW, SLOW), (FAST, FAST)))
    assert mixed.seconds("forward") == slow.seconds("forward") and mixed.seconds("backward") == slow.seconds("backward")
    layers = fast.seconds("forward") + fast.seconds("backward") + fast.seconds("launches")
    embedding = mixed.seconds("bubble") - layers / plan.microbatches
    assert 0 < embedding < 0.1 * mixed.seconds("bubble")
    assert fast.step_seconds < mixed.step_seconds < slow.step_seconds


def test_the_slowest_replica_decides() -> None:
    """Nodes in turn fast and slow, two stages of two nodes: one replica is fast on both stages, one slow on both."""
    plan = Plan(batch=64, microbatch=4, data=16, pipeline=2)
    mixed, slow = predict(GPT, plan, nodes(FAST, SLOW, count=4)), predict(GPT, plan, nodes(SLOW, SLOW, count=4))
    assert mixed.step_seconds == pytest.approx(slow.step_seconds)


def test_slower_gpus_get_fewer_layers() -> None:
    assert split_by_pace(12, [1.0, 3.0], 0.0, 0.0) == [9, 3]
    assert split_by_pace(12, [1.0, 1.0, 1.0], 0.0, 3.0) == [5, 5, 2]
    plan = Plan(batch=64, microbatch=4, data=8, pipeline=2)
    even, by_cost = (predict(GPT, replace(plan, balance=how), nodes(FAST, SLOW)) for how in ("layers", "cost"))  # type: ignore[arg-type]
    assert by_cost.step_seconds < 0.8 * even.step_seconds
    (fast, slow) = by_cost.stages
    assert fast.layers + slow.layers == 16 and fast.layers >= 2 * slow.layers
    found = search(GPT, 64, nodes(FAST, SLOW), pipeline=2, tensor=1, microbatch=4, zero=0, recompute="none", chunks=1)
    assert found.best.plan.balance == "cost" and found.best.step_seconds == by_cost.step_seconds


def test_each_stage_must_fit_on_its_own_gpus() -> None:
    """Equal stages fit on 80 GB and not on 32; with fewer layers on the smaller GPUs both do."""
    large = replace(GPT, layers=48, width=4096, heads=32)
    plan = Plan(batch=64, microbatch=2, data=8, pipeline=2, zero=1, balance="cost")
    made = predict(large, plan, nodes(FAST, SLOW))
    first, second = made.stages
    assert first.total > 32e9 > second.total + second.reserved and made.fits and made.memory_gb in (80, 32)
    alike = predict(large, replace(plan, balance="layers"), nodes(FAST, SLOW))
    assert not alike.fits and alike.memory.stage == 1 and alike.memory_gb == 32
    assert "GB more than the 32 of v100-32gb" in alike.shortage()[0]


def test_the_shell_takes_several_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "made.json"
    asked = "predict --model gpt-1.3b --cluster a100x16 --batch 64 --set gpu=a100-80gb,v100-32gb --explain "
    asked += "--tensor 1 --pipeline 2 --data 8 --microbatch 4 --json"
    assert main([*asked.split(), str(target)]) == 0
    said = capsys.readouterr().out
    assert "gpt-1.3b on 16 a100-80gb and v100-32gb" in said and "312 or 125 TFLOP/s" in " ".join(said.split())
    assert json.loads(target.read_text())["gpu"] == "a100-80gb and v100-32gb"
    assert main([*asked.split(), str(target), "--precision", "fp8"]) == 2
    assert "not a100-80gb" in capsys.readouterr().err
