"""`labkit launch --save`: what runs a program without the lab."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


def test_what_a_configuration_file_runs_is_saved_as_the_refusal_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    configuration = Path(__file__).parents[2] / "cluster" / "configs" / "ddp.yaml"
    words = ["--config", str(configuration), "-n", "2", "--save", "run.sh", "--", "--epochs", "1"]
    assert main(["launch", *words]) == 2
    refusal = capsys.readouterr().err
    assert "are for one program, a file or a module" in refusal
    program, command = re.findall(r"\n\n((?:    .*\n|\n)+)", refusal)
    (tmp_path / "ddp.py").write_text(textwrap.dedent(program))
    labkit, *advised = shlex.split(command)
    assert labkit == "labkit" and main(advised) == 0
    saved = (tmp_path / "run.sh").read_text()
    assert "--nproc-per-node=2" in saved and "ddp.py" in saved
    assert "--strategy=ddp" in saved and saved.rstrip().endswith("--epochs 1")
