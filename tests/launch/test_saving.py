"""`labkit launch --save`: what runs a program without the lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from labkit.cli import main

PROGRAM = """\
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, (os.environ["GROUP_RANK"], os.environ["OMP_NUM_THREADS"], sys.argv[1:]))
if dist.get_rank() == 0:
    print(*everyone, sep="\\n")
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_shell_script_runs_the_program(folder: Path) -> None:
    assert main(["launch", "train.py", "-n", "2", "--save", "run.sh", "--", "a b", "--lr=1"]) == 0
    done = subprocess.run(["./run.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert done.stdout.splitlines() == [f"('0', '{threads}', ['a b', '--lr=1'])"] * 2


def test_a_shell_script_for_each_of_several_nodes(folder: Path) -> None:
    words = ["launch", "-m", "train", "--nnodes", "2", "--master-port", "4711", "--save", "run.sh"]
    assert main(words) == 0
    line = (folder / "run.sh").read_text().splitlines()[-1]
    options = '--node-rank="$number" --master-addr="$host" --master-port=4711'
    assert line == f"exec torchrun --nnodes=2 {options} --nproc-per-node=1 -m train"
    missing = subprocess.run(["./run.sh", "node1"], capture_output=True, text=True)
    assert missing.returncode != 0 and "give the number of this node: 0 on node1, and 1 to 1" in missing.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train.py", "--save", "job.sbatch"], "--save job.sbatch: a job for sbatch needs --cluster slurm"),
        (["train.py", "--save", "job.txt"], "--save job.txt: the name must end in .sh, .sbatch or .yaml"),
        (["train.py", "--save", "there.sh"], "there.sh exists; --force overwrites it"),
        (["train.py", "--save", "no/where.sh"], "no/where.sh cannot be written: No such file or directory"),
        (["train.py", "--nnodes", "1:2", "--master-port", "1", "--save", "a.sh"], "torchrun chooses MASTER_PORT"),
        (["train.ipynb", "--save", "a.sh"], "--save and --print-command are for one program"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], answer: str
) -> None:
    (folder / "there.sh").write_text("precious")
    (folder / "train.ipynb").write_text("{}")
    assert main(["launch", *words]) == 2
    assert answer in capsys.readouterr().err
    assert (folder / "there.sh").read_text() == "precious"


def test_the_command_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "train.py", "--print-command", "--cluster", "virtual", "-n", "4", "--", "$HOME"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "# starts real processes; the virtual cluster has modelled GPUs:",
        "torchrun --standalone --nproc-per-node=4 train.py '$HOME'",
    ]


def test_what_a_configuration_file_runs_is_saved_with_its_modules(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the script runs there is neither a course nor a workspace, only labkit."""
    configuration = Path(__file__).parents[2] / "cluster" / "configs" / "ddp.yaml"
    words = ["launch", "--config", str(configuration), "-n", "2", "--save", "run.sh"]
    assert main([*words, "--", "--epochs", "1", "--model", "mlp"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "saved as run.sh and ddp.py\n"
    (note,) = shown.err.splitlines()
    assert note.startswith("note: it trains with the solution of image_classification, on top of the solutions of ")
    nowhere = {**os.environ, "LABKIT_ROOT": str(folder / "nothing")}
    done = subprocess.run(["./run.sh"], capture_output=True, text=True, env=nowhere)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epoch"] == 1 and "ddp on 2 ranks" in done.stderr
    # neither file is overwritten
    (folder / "run.sh").unlink()
    assert main(words) == 2
    assert "ddp.py exists; --force overwrites it" in capsys.readouterr().err and not (folder / "run.sh").exists()


@pytest.mark.parametrize("name", ["fsdp", "3d"])
def test_the_large_configurations_become_valid_manifests(folder: Path, name: str) -> None:
    configuration = Path(__file__).parents[2] / "cluster" / "configs" / f"{name}.yaml"
    words = ["launch", "--config", str(configuration), "--cluster", "kubernetes", "--image", "lab:1"]
    assert main([*words, "--save", "job.yaml", "--", "--checkpoint-dir", "/runs/one"]) == 0
    config_map, service, job = yaml.safe_load_all(Path("job.yaml").read_text())
    for thing in (config_map, service, job):
        kubernetes_validate.validate(thing, "1.34", strict=True)
    # kubectl apply keeps the whole object in an annotation, which has at most 256 KiB
    assert f"{name}.py: |\n" in Path("job.yaml").read_text() and len(json.dumps(config_map)) < 200_000
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert {"--nproc-per-node=8", f"/run/program/{name}.py"} <= set(container["command"])


def test_the_command_of_a_configuration_file_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configuration = Path(__file__).parents[2] / "cluster" / "configs" / "ddp.yaml"
    assert main(["launch", "--config", str(configuration), "--print-command", "-n", "2", "--", "--epochs", "1"]) == 0
    command, where = capsys.readouterr().out.splitlines()
    assert "torchrun --standalone --nproc-per-node=2 ddp.py --model=resnet8" in command and command.endswith(
        "--epochs 1"
    )
    assert where == "# --save run.sh writes ddp.py" and not Path("ddp.py").exists()
