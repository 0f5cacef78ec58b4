"""Whose modules a program runs: one rule, printed in one line, however it is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import catalogue
from labkit.checks.known_passes import remember_pass
from labkit.checks.ranks import Submission
from labkit.checks.working_modules import working_modules
from labkit.cli import main
from labkit.launch.options import parse
from labkit.launch.tasks import tasks

PROGRAM = """\
from labkit.exercises import process_group, ddp

def test():
    print(getattr(process_group, "WHOSE", "the lab's"), getattr(ddp, "WHOSE", "the lab's"))

if __name__ == "__main__":
    test()
"""
NOTE = (
    "note: it runs with your own process_group and the solution of ddp, on top of the solutions of collectives, "
    "data_loader and trainer; not known to pass: your own ddp (labkit check)."
)
CONFIG = Path(__file__).parents[2] / "cluster" / "configs" / "ddp.yaml"


@pytest.fixture
def folder(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The learner has written process_group, which has passed, and ddp, which has not."""
    for name in ("process_group", "ddp"):
        exercise = catalogue.find(name)
        exercise.save(exercise.source("solution")[0] + '\nWHOSE = "mine"\n')
    exercise = catalogue.find("process_group")
    remember_pass(Submission(exercise, exercise.source("yours")[0]))
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py"],
        ["python", "-m", "train"],
        ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"],
        ["python", "-m", "labkit", "launch", "train.py", "-n", "2"],
        ["python", "-m", "labkit", "launch", "-m", "train"],
    ],
    ids=lambda words: " ".join(words),
)
def test_programs_follow_the_rule_and_say_it_once(folder: Path, command: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CONFIG.parents[2])}
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    # two ranks may print their lines at once, or the launcher one for both
    assert set(re.sub(r"(?m)^\[[0-9-]+\] ", "", done.stdout).split("\n")) == {"mine the lab's", ""}
    assert [line for line in done.stderr.splitlines() if line.startswith("note: ")] == [NOTE]


def test_commands_follow_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(CONFIG)]
    (task,) = tasks(parse(words), words)
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(
        "note: it trains with the solution of image_classification, on top of your own process_group"
    )
    assert note.endswith("; not known to pass: your own ddp (labkit check).")
    whose = [name for name, text in task.job.modules.items() if 'WHOSE = "mine"' in text]
    assert whose == ["phase1_data_parallel/process_group"]
    assert (
        main(["bench", "scaling", "--gpus", "1", "--strategies", "ddp", "--model", "mlp-8x8x2", "--real", "none"]) == 0
    )
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(
        "note: it measures with the solution of scaling_study, on top of your own process_group and "
    )
    (folder / "objective.py").write_text("def objective(configuration, steps):\n    return configuration['x']\n")
    assert main(["tune", "objective.py", "--space", "x=1,2", "--budget", "8"]) == 0
    assert capsys.readouterr().err.endswith("note: it tunes with the solution of autotune.\n")


def test_without_a_solution_the_own_module_runs_although_it_has_not_passed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on learners' machines."""
    course = folder / "course"
    (course / "labkit").mkdir(parents=True)
    (course / "labkit" / "catalogue.toml").write_text((catalogue.root() / "labkit" / "catalogue.toml").read_text())
    (course / "templates").symlink_to(catalogue.root() / "templates")
    monkeypatch.setenv("LABKIT_ROOT", str(course))
    chosen = working_modules(catalogue.find("ddp"), purpose="runs")
    (note,) = chosen.notes
    assert note.startswith("it runs with your own ddp, on top of your own process_group and the templates of ")
    assert note.endswith("; not known to pass: your own ddp (labkit check).")
    assert 'WHOSE = "mine"' in chosen.modules["phase3_multi_node/ddp"]
