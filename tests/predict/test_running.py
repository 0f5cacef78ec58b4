"""Whole runs: cost, failures and checkpoints, stragglers, scaling, with known answers."""

from __future__ import annotations

import math

import pytest

from labkit.hardware import topology
from labkit.predict import Plan, checkpoint_interval, goodput, model, predict, run, scaling, with_stragglers

A100 = topology("dgx-a100", nnodes=4)
MADE = predict(model("gpt-1.3b"), Plan(64, 1, 32), A100)


def test_hours_and_dollars() -> None:
    whole = run(MADE, 6400 - 1, 2.5)
    assert whole.steps == 100
    assert whole.hours == pytest.approx(100 * MADE.step_seconds / 3600)
    assert whole.dollars == pytest.approx(whole.hours * 32 * 2.5)
    with pytest.raises(ValueError, match="samples must be above 0"):
        run(MADE, 0, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_what_is_no_number_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match="samples must be above 0"):
        run(MADE, bad, 1)
    with pytest.raises(ValueError, match="price at least 0"):
        run(MADE, 1, bad)
    with pytest.raises(ValueError, match="failures_per_gpu_hour"):
        goodput(MADE, failures_per_gpu_hour=bad)
    with pytest.raises(ValueError, match="restart_seconds"):
        goodput(MADE, restart_seconds=bad)
    with pytest.raises(ValueError, match="checkpoint_seconds"):
        goodput(MADE, checkpoint_seconds=bad)
    with pytest.raises(ValueError, match="spread"):
        with_stragglers(MADE, bad)
    with pytest.raises(ValueError, match="data_seconds"):
        predict(model("gpt-1.3b"), Plan(64, 1, 32), A100, data_seconds=bad)


def test_a_checkpoint_holds_each_parameter_once_however_many_ranks_have_it() -> None:
    def write(zero: int, nodes: int) -> float:
        cluster = topology("dgx-a100", nnodes=nodes)
        made = predict(model("gpt-1.3b"), Plan(64, 1, 8 * nodes, zero=zero), cluster)
        return goodput(made).checkpoint_seconds - cluster.storage.latency_seconds

    whole = model("gpt-1.3b").parameters * (2 + 12) / A100.storage.write_gb_per_s / 1e9
    assert write(0, 1) == write(1, 1) == pytest.approx(whole)
    assert write(0, 4) == write(1, 4) == pytest.approx(whole / 4)


def test_checkpoints_are_written_at_youngs_interval_with_dalys_correction() -> None:
    """Daly 2006: where a checkpoint is short compared with the time between failures, Young's square root remains."""
    cost, mean = 1.0, 1e6
    assert checkpoint_interval(cost, mean) == pytest.approx(math.sqrt(2 * cost * mean), rel=1e-3)
    assert checkpoint_interval(300, 24 * 3600) == pytest.approx(7000.0, rel=0.01), "sqrt gives 7200, Daly about 7000"
    assert checkpoint_interval(10.0, 4.0) == 4.0
    with pytest.raises(ValueError, match="above 0"):
        checkpoint_interval(0, 1)


def test_dalys_interval_loses_least() -> None:
    def lost(every: float, cost: float, mean: float) -> float:
        return mean * math.expm1((every + cost) / mean) / every

    for cost, mean in ((30.0, 3600.0), (5.0, 86_400.0), (600.0, 7200.0)):
        best = checkpoint_interval(cost, mean)
        assert lost(best, cost, mean) <= 1.001 * min(lost(best * factor, cost, mean) for factor in (0.5, 0.8, 1.25, 2))


def test_goodput_falls_with_failures_and_with_gpus() -> None:
    """Llama 3 had 419 unexpected interruptions in 54 days on 16,384 GPUs, and above 90 % of effective time."""
    huge = predict(
        model("llama3-405b"),
        Plan(2048, 1, 128, 8, 16, zero=1, sequence_parallel=True),
        topology("dgx-h100", nnodes=2048),
    )
    found = goodput(huge)
    assert found.failures_per_day == pytest.approx(419 / 54)
    assert 0.85 < found.share < 0.97
    assert goodput(MADE).share > found.share
    assert goodput(huge, failures_per_gpu_hour=1e-9).share > 0.99
    assert goodput(huge, checkpoint_seconds=600).share < goodput(huge, checkpoint_seconds=30).share
    with pytest.raises(ValueError, match="failures_per_gpu_hour"):
        goodput(huge, failures_per_gpu_hour=0)


def test_stragglers_are_waited_for() -> None:
    assert with_stragglers(MADE, 0.0) == MADE.step_seconds
    expected = MADE.step_seconds + 0.01 * math.sqrt(2 * math.log(32)) * MADE.seconds("compute")
    assert with_stragglers(MADE, 0.01) == pytest.approx(expected)


def test_weak_scaling_keeps_more_than_strong() -> None:
    plan = Plan(64, 2, 8, zero=1)
    weak = scaling(model("gpt-1.3b"), plan, A100, (1, 2, 4, 8), weak=True)
    strong = scaling(model("gpt-1.3b"), plan, A100, (1, 2, 4, 8), weak=False)
    assert [point.gpus for point in weak] == [8, 16, 32, 64]
    assert weak[0].efficiency == strong[0].efficiency == 1
    assert 0.8 < weak[-1].efficiency <= 1.01, "ZeRO leaves each rank less of the optimizer to do"
    assert strong[-1].efficiency < weak[-1].efficiency
    with pytest.raises(ValueError, match="no multiple of tensor x pipeline x context"):
        scaling(model("gpt-1.3b"), Plan(64, 1, 1, 8, 3), A100, (1,), weak=True)
