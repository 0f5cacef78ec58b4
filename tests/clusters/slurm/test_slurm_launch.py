"""`labkit launch` on a real Slurm: on its nodes, and as a job for sbatch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from slurm_rig import SlurmRig  # beside this file
from waiting import wait_until

from labkit.cli import main

PROGRAM = """\
import os, sys
import torch.distributed as dist
import beside
dist.init_process_group("gloo")
everyone = [None] * dist.get_world_size()
here = (dist.get_rank(), os.uname().nodename, os.environ["OMP_NUM_THREADS"], sys.argv[1:])
dist.all_gather_object(everyone, here)
if dist.get_rank() == 0:
    print(*everyone, sep="\\n", flush=True)
dist.barrier()
if sys.argv[1] == "fail" and dist.get_rank() == 3:
    raise ValueError("no data")
dist.destroy_process_group()
"""
OPTIONS = [
    "--cluster",
    "slurm",
    "--nnodes",
    "2",
    "-n",
    "2",
    "--cpus-per-task",
    "2",
    "--partition",
    "lab",
    "--time",
    "5",
]


@pytest.fixture
def folder(rig: SlurmRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def expected(rig: SlurmRig, word: str) -> list[str]:
    names = [node.name for node in rig.nodes] if rig.namespaces else [os.uname().nodename] * 2
    return [f"({rank}, '{names[rank // 2]}', '2', ['{word}'])" for rank in range(4)]


def test_a_program_runs_on_the_nodes_and_its_failure_comes_back(
    rig: SlurmRig, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "train.py", *OPTIONS, "--", "fail"]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"[0:0] {line}" for line in expected(rig, "fail")]
    assert "RankFailed: ValueError on rank 3 of 4" in shown.err and "  train.py, line 12" in shown.err
    assert "waits" in shown.err or "Python starts there" in shown.err


def test_a_saved_job_does_the_same_for_sbatch(separate_nodes: SlurmRig, folder: Path) -> None:
    """The nodes find each other by their names."""
    rig = separate_nodes
    assert main(["launch", "train.py", *OPTIONS, "--save", "job.sbatch", "--", "a b"]) == 0
    job = rig.ask("sbatch", "--parsable", "--output=out", "--error=err", "job.sbatch")
    assert job.isdigit(), job
    wait_until(lambda: not rig.ask("squeue", "--noheader", f"--jobs={job}", "--format=%i"))
    printed = (folder / "out").read_text()
    assert printed.splitlines() == expected(rig, "a b"), (folder / "err").read_text()


def test_a_saved_image_trainer_trains_by_sbatch_and_goes_on(
    separate_nodes: SlurmRig, folder: Path, tmp_path: Path
) -> None:
    """The program of a configuration file, on two nodes, one epoch and then another one."""
    rig, configs = separate_nodes, Path(__file__).parents[3] / "cluster" / "configs"
    words = ["launch", "--config", str(configs / "ddp.yaml"), *OPTIONS, "--save", "job.sbatch", "--force", "--"]
    words += ["--model", "mlp", "--checkpoint-dir", str(tmp_path / "saved"), "--resume", "--epochs"]
    reports = []
    for epochs in ("1", "2"):
        assert main([*words, epochs]) == 0
        job = rig.ask("sbatch", "--parsable", "--output=out", "--error=err", "job.sbatch")
        assert job.isdigit(), job
        wait_until(lambda: not rig.ask("squeue", "--noheader", f"--jobs={job}", "--format=%i"))  # noqa: B023
        errors = (folder / "err").read_text()
        reports.append(json.loads((folder / "out").read_text() or "{}") or errors)
    steps = [report["step"] for report in reports]
    assert [report["epoch"] for report in reports] == [1, 2] and steps[1] == 2 * steps[0], reports
    assert [path.name for path in sorted((tmp_path / "saved").glob("step_*"))] == [f"step_{step:08}" for step in steps]
    assert f"from step {steps[0]}" in errors, errors
