"""The range of a step: the sum of its parts' ranges, widest for the parts that measured runs spread most in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.hardware import topology
from labkit.predict import OneOf, Plan, model, predict, predict_range, search
from labkit.predict.spread import SPREAD, parts

A100 = topology("dgx-a100", nnodes=4)
LAYOUTS = {
    "data": Plan(64, 1, 32, zero=3),
    "tensor": Plan(64, 2, 4, 8, sequence_parallel=True),
    "pipeline": Plan(64, 1, 2, 4, 4, sequence_parallel=True),
    "tensor over nodes": Plan(64, 2, 2, 16, sequence_parallel=True),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_sum_to_the_step_and_their_ranges_to_its(name: str) -> None:
    made = predict(model("gpt-6.7b"), LAYOUTS[name], A100)
    seconds = parts(made.terms, made.plan, made.cluster)
    assert sum(seconds.values()) == pytest.approx(made.step_seconds)
    assert made.step_range.low == pytest.approx(sum(seconds[part] * (1 - SPREAD[part].faster) for part in seconds))
    assert made.step_range.high == pytest.approx(sum(seconds[part] * (1 + SPREAD[part].slower) for part in seconds))
    assert made.step_range.low < made.step_seconds < made.step_range.high


def test_traffic_belongs_to_a_part_by_the_ranks_that_it_passes() -> None:
    def traffic(name: str) -> dict[str, float]:
        made = predict(model("gpt-6.7b"), LAYOUTS[name], A100)
        return {part: one for part, one in parts(made.terms, made.plan, made.cluster).items() if one}

    assert {"traffic between nodes"} == {part for part in traffic("data") if "nodes" in part}
    assert {"traffic in nodes", "traffic between nodes"} == {part for part in traffic("tensor") if "nodes" in part}
    assert {"tensor parallel between nodes", "traffic between nodes"} == {
        part for part in traffic("tensor over nodes") if "nodes" in part
    }
    assert "bubble" in traffic("pipeline") and "bubble" not in traffic("tensor")


def test_hosts_that_do_not_run_ahead_make_the_range_wider() -> None:
    plan = LAYOUTS["pipeline"]
    sure, unsure = (predict(model("gpt-6.7b"), replace(plan, run_ahead=ahead), A100) for ahead in (True, False))
    assert unsure.step_range.high / unsure.step_seconds > 1.5 > sure.step_range.high / sure.step_seconds
    one_node = predict(model("gpt-1.3b"), replace(plan, data=1, tensor=2, run_ahead=False), topology("dgx-a100"))
    assert one_node.step_range.high / one_node.step_seconds < 1.5


def test_unknown_inputs_widen_it() -> None:
    plan = {**vars(LAYOUTS["data"]), "microbatch": OneOf((1, 2))}
    made = predict_range(model("gpt-6.7b"), plan, A100)
    ends = [case.step_range for case in made.cases]
    assert made.step_range.low == min(one.low for one in ends) and made.step_range.high == max(one.high for one in ends)


def test_the_safest_layout_is_the_fastest_at_the_upper_end() -> None:
    found = search(model("gpt-1.3b"), 64, A100, run_ahead=False, zero=1)
    safest = found.safest
    assert all(safest.step_range.high <= made.step_range.high for made in found.found)
    assert safest.plan.pipeline == 1
    with pytest.raises(ValueError, match="no layout fits"):
        _ = search(model("gpt-1t"), 64, topology("dgx-a100")).safest


def test_the_command_tells_it_and_the_memory_s_upper_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recommended layout of 13 billion parameters fits whatever torch's allocator keeps."""
    target = tmp_path / "prediction.json"
    assert main(["predict", "--model", "gpt-13b", "--cluster", "a100x32", "--explain", "--json", str(target)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "90% of measured steps take" in told and "90% of measured steps take" in told.split("a step of 256 samples")[1]
    )
    written = json.loads(target.read_text())
    assert written["step_seconds_range"][0] < written["step_seconds"] < written["step_seconds_range"][1]
    upper = float(told.split("allocator may keep, is up to ")[1].split(" GB")[0])
    assert upper <= 80
