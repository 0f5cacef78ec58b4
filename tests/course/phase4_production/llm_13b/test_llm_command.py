"""The language model as a program: used folders, SIGTERM, wrong arguments, text from a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local
from labkit.clusters import Run
from labkit.course.phase4_production.llm_13b.given import program

EXERCISE = catalogue.find("llm_13b")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}
SMALL = ["--model", "2x16x2", "--sequence", "8", "--global-batch-size", "4", "--pipeline-parallel", "2"]
MAIN = """
import os, signal
from labkit.course.phase4_production.llm_13b import given
from labkit.exercises import llm_13b

class Report(llm_13b.Report):
    def end_step(self, step, loss):
        if (step + 1, os.environ["RANK"]) == (stop, "1"):
            os.kill(os.getpid(), signal.SIGTERM)
        super().end_step(step, loss)

llm_13b.Report = Report

def ended(words):
    try:
        result = given.main(llm_13b, words)
    except SystemExit as end:
        return f"exit {end.code}"
    return result if isinstance(result, dict) else [result.first_step, result.held_out_loss]

[ended(words) for words in calls]
"""


@pytest.fixture(autouse=True)
def written(workspace: Path) -> None:
    """The learner's modules are the solutions."""
    for name, source in MODULES.items():
        catalogue.find(name).save(source)


def run(*calls: list[str], stop: int = 0) -> Run:
    """Call the program on two local ranks, once for each list of words. stop: rank 1 gets SIGTERM in this step."""
    source = f"calls, stop = {calls!r}, {stop!r}\n{MAIN}"
    return local(nproc_per_node=2).run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS))


def values(done: Run) -> list[Any]:
    """Return what each rank returns for the calls."""
    return list(done.raise_if_failed().values)


def test_a_terminated_training_goes_on_exactly_and_its_model_writes(tmp_path: Path) -> None:
    """Two stages in two real processes. Both save after step 3, at which one of them gets the signal."""
    folder, log, file = str(tmp_path / "run"), tmp_path / "log.jsonl", tmp_path / "model.pt"
    words = [*SMALL, "--steps", "5", "--held-out", "8"]
    saved = [*words, "--checkpoint-dir", folder, "--log-file", str(log)]
    ((whole,), _) = values(run(words))
    assert values(run(saved, stop=3)) == [["exit 143"]] * 2
    done = run(
        saved,
        [*saved, "--resume", "--model", "2x32x2"],
        [*saved, "--resume", "--keep", "1", "--checkpoint-steps", "1"],
        ["evaluate", "--checkpoint-dir", folder, "--held-out", "8"],
        ["generate", "--checkpoint-dir", folder, "--prompt", "import ", "--tokens", "12"],
        ["export", "--checkpoint-dir", folder, "--to", str(file)],
    )
    refused, other, resumed, evaluation, text, _ = values(done)[0]
    assert (refused, other) == ("exit 2", "exit 2")
    assert resumed == [3, whole[1]] and evaluation["held_out_loss"] == pytest.approx(whole[1])
    assert len(text["text"].encode()) >= 19 and text["text"].startswith("import ")
    output = done.ranks[0].output
    assert f"{folder} has 2 checkpoints of an earlier run: --resume goes on with it" in output
    assert "has a training with --model 2x16x2, which cannot go on with --model 2x32x2" in output
    assert "resumed from step 3" in output and "step 5/5  loss " in output
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["step"] for entry in events if entry["event"] == "step"] == [1, 2, 3, 4, 5]
    assert {len(list(Path(folder, place).glob("step_*"))) for place in ("pp0_tp0", "pp1_tp0")} == {1}
    stored = torch.load(file)
    assert (stored["layers"], stored["step"]) == (2, 5) and len(stored["weights"]) > 20


def test_python_m_shows_help() -> None:
    name = f"solutions.{EXERCISE.name.replace('/', '.')}"
    environment = {key: value for key, value in os.environ.items() if key != "LABKIT_WORKSPACE"}
    done = subprocess.run(
        [sys.executable, "-m", name, "--help"], env=environment, cwd=catalogue.root(), capture_output=True, text=True
    )
    assert done.returncode == 0 and "--pipeline-parallel" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--global-batch-size", "0"], "argument --global-batch-size: must be an integer from 1, got 0"),
        (["--lr", "0"], "argument --lr: must be a number above 0, got 0"),
        (["--model", "2x64"], "argument --model: expected LAYERSxWIDTHxHEADS"),
        (["--model", "2x64x5"], "--model 2x64x5: a width of 64 does not divide into 5 heads"),
        (["--tensor-parallel", "3"], "--tensor-parallel 3 does not divide 4 heads"),
        (["--checkpoint-steps", "2"], "--checkpoint-steps needs --checkpoint-dir"),
        (["--resume"], "--resume needs --checkpoint-dir"),
        (["generate", "--checkpoint-dir", "/missing"], "/missing has no configuration.json of llm_13b"),
        (["generate", "--checkpoint-dir", "x", "--prompt", ""], "--prompt must have a character or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(None, words)
    shown = capsys.readouterr()
    assert end.value.code == 2 and shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("llm_13b") and message in line
