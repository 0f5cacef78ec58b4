"""`labkit predict --scale`: efficiency from one GPU over a node to many, as a table and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main


def test_a_study_goes_from_one_gpu_over_a_node_to_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"study.{ending}" for ending in ("md", "html", "json", "png")]
    asked = "predict --model gpt-1.3b --cluster a100 --scale 1..256 --batch 4 --microbatch 4 --samples 1e6 --price 2"
    assert main([*asked.split(), *(word for file in files for word in ("--report", str(file)))]) == 0
    printed = capsys.readouterr().out
    assert "weak scaling" in printed and "epoch, $" in printed
    points = json.loads(files[2].read_text())["points"]
    assert [point["gpus"] for point in points] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert points[0]["efficiency"] == 1 and points[0]["communication_share"] == 0
    assert points[3]["efficiency"] > points[4]["efficiency"] > points[8]["efficiency"] > 0.5, "NVLink, then the network"
    assert files[0].read_text().count("\n| ") == 11 and "<table>" in files[1].read_text()
    assert files[3].read_bytes().startswith(b"\x89PNG")


def test_the_batch_stays_in_strong_scaling(tmp_path: Path) -> None:
    target = tmp_path / "study.json"
    asked = f"predict --model gpt-1.3b --cluster a100x8 --scale 8..64 --strong --batch 64 --report {target}"
    assert main(asked.split()) == 0
    points = json.loads(target.read_text())["points"]
    assert {round(point["samples_per_second"] * point["step_seconds"]) for point in points} == {64}
    assert points[-1]["efficiency"] < points[1]["efficiency"]


def points_of(target: Path, arguments: str) -> list[dict[str, Any]]:
    asked = f"predict --model resnet50 --cluster a100x8 --scale 1..8 {arguments} --report {target}"
    assert main(asked.split()) == 0
    points: list[dict[str, Any]] = json.loads(target.read_text())["points"]
    return points


@pytest.mark.parametrize(("kept", "batch"), [("--weak", 32), ("--strong", 48)])
def test_a_microbatch_that_is_not_given_is_the_fastest(
    kept: str, batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "study.json"
    chosen = points_of(target, f"{kept} --batch {batch}")
    assert "the fastest microbatch that fits" in " ".join(capsys.readouterr().out.split())
    shares = [batch if kept == "--weak" else batch // gpus for gpus in (1, 2, 4, 8)]
    assert [point["microbatch"] for point in chosen] == shares, "larger ones keep a GPU busier, and all fit here"
    for micro in (1, 2, 3) if kept == "--strong" else (1, 8, 16):
        given = points_of(target, f"{kept} --batch {batch} --microbatch {micro}")
        assert [point["microbatch"] for point in given] == [micro] * 4
        assert all(own["step_seconds"] < other["step_seconds"] for own, other in zip(chosen, given, strict=True))
    assert "the fastest microbatch" not in " ".join(capsys.readouterr().out.split())


def test_a_chosen_microbatch_fits(tmp_path: Path) -> None:
    target = tmp_path / "study.json"
    chosen = points_of(target, "--batch 8192")
    assert all(point["fits"] and 1 < point["microbatch"] < 8192 for point in chosen)
    assert not any(point["fits"] for point in points_of(target, "--batch 8192 --microbatch 8192"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--scale 8", "--scale is two numbers of GPUs, such as 1..256, got '8'"),
        ("--strong", "--strong needs --scale"),
        ("--scale 1..8 --data 8", "--data follows from --scale"),
        ("--scale 1..8 --report study.pdf", "its name must end in .md, .html, .json, .png"),
        ("--scale 1..8 --tensor 2", "1 GPUs are no multiple of tensor x pipeline x context = 2"),
    ],
)
def test_what_is_wrong_is_said(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "gpt-1.3b", "--cluster", "a100x8", *arguments.split()]) == 2
    assert said in capsys.readouterr().err
