"""`labkit calibrate --quick` on this machine from end to end, and what stops it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import virtual
from labkit.calibrate import examine, machine
from labkit.calibrate.machine import Machine, UnsuitableMachine
from labkit.cli import main
from labkit.clusters import Job
from labkit.hardware import topology
from labkit.predict import COMPONENTS

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    asked = ["--quick", "--device", "cpu", "--ranks", "2", "--report", str(folder / "mine.png")]
    assert main(["calibrate", *asked, "--to", str(folder / "mine.json")]) == 0
    return folder / "mine.json"


def test_the_file_holds_what_was_measured_and_says_so(preset: Path) -> None:
    content = json.loads(preset.read_text())
    measured = content["measured"]
    assert measured["torch"] == torch.__version__ and measured["ranks"] == 2 and measured["date"].count("-") == 2
    assert all(one["spread"] >= 0 and one["value"] >= 0 for one in measured["quantities"])
    timed = {one["what"] for one in measured["samples"]}
    assert {"product", "copy", "launch", "layer", "pass", "optimizer"} < timed
    assert {"all_reduce", "all_gather", "reduce_scatter", "send", "overlap both"} < timed
    assert all(one["seconds"] > 0 for one in measured["samples"])
    assert {one["ranks"] for one in measured["check"]} == {1, 2}
    for one in measured["check"]:
        assert 0 < one["quickest_tenth_seconds"] <= one["measured_seconds"]
        assert one["predicted_seconds"] > 0 and one["virtual_seconds"] > 0
    cluster = topology(str(preset))
    assert "measured" in cluster.gpu.source and "measured" in cluster.intra_node.source
    assert cluster.intra_node.library == "gloo" and cluster.world_size == 2
    assert {path.name for path in preset.parent.iterdir()} == {"mine.json", "mine.png"}
    assert preset.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_predictions_take_it(preset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = topology(str(preset))
    known = COMPONENTS.on(cluster)  # raises for an unknown constant
    assert all(getattr(known, name) == value for name, value in cluster.constants)
    asked = ["predict", "--model", "mlp-784x512x10", "--cluster", str(preset), "--batch", "64", "--precision", "fp32"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "2 cpu" in said and f"measured {json.loads(preset.read_text())['measured']['date']}" in said


def test_virtual_ranks_take_it(preset: Path) -> None:
    run = virtual(str(preset)).run(Job.calling(_sum, timeout=BROKEN_SECONDS))
    assert run.ok, run.diagnosis()
    assert run.values == [1, 1]


def _sum() -> int:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.tensor(dist.get_rank())
    dist.all_reduce(tensor)
    return int(tensor)


def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("as it was")
    command = [sys.executable, "-m", "labkit", "calibrate", "--device", "cpu", "--to", str(tmp_path / "old.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        measuring = any(line.startswith("product") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=BROKEN_SECONDS)
    assert measuring and rest.endswith("nothing is written\n")
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "as it was"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--to", "."], "is a folder"),
        (["--to", "nowhere/a.json"], "there is no folder nowhere"),
        (["--ranks", "0"], "--ranks must be from 1 to 64, got 0"),
        (["--to", "/proc/a.json"], "nothing can be written in /proc"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(
    asked: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *asked]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "product" not in captured.out


def test_too_little_memory_is_said() -> None:
    with pytest.raises(
        UnsuitableMachine, match=r"too little memory: .* free for 64000 ranks, each needs 256; .*--ranks"
    ):
        examine("cpu", 64_000)


def test_without_a_gpu_cuda_is_refused() -> None:
    if torch.cuda.is_available():
        assert examine("cuda", 1).device == "cuda"
        return
    with pytest.raises(UnsuitableMachine, match="torch sees no GPU here"):
        examine("cuda")


def test_more_ranks_than_cores_are_told() -> None:
    crowded = Machine("cpu", "a processor", 4096, 1, 1e9, 1e9)
    assert any("4096 ranks share" in warning for warning in machine.warnings(crowded))


@needs_a_gpu
def test_gpus_are_measured_with_nccl(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    assert main(["calibrate", "--quick", "--device", "cuda", "--to", str(file)]) == 0
    cluster = topology(str(file))
    assert cluster.nproc_per_node == torch.cuda.device_count()
    assert 0.2 < cluster.gpu.matmul_efficiency <= 1
    assert dict(cluster.constants)["host_seconds"] < 1e-3
