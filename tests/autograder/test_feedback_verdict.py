"""`labkit verdict`: instructors see in full what learners see in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.feedback import for_learner
from autograder.verdict import Verdict
from autograder.verdicts.store import GradingTask, StoredVerdict, VerdictStore
from labkit.checks import CheckResult, Report
from labkit.cli import main


def test_all_that_the_judge_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = CheckResult(
        "values", 2, 0, "3", "ValueError: inputs are 4\x1b[2J\n  5", stopped="ValueError", fault="Traceback"
    )
    report = Report("phase3_x/ring", [failed, CheckResult("messages", 1, 1)], seed=4711)
    verdicts = VerdictStore(tmp_path)
    verdicts.keep(
        GradingTask("ada", "phase3_x", "ring"), StoredVerdict("key", Verdict({"grade_ring": report}, ("Odd.",)), 1.0)
    )
    verdicts.fail(GradingTask("ada", "phase3_x", "scan"), "the disk is full", 2)
    assert "inputs" not in for_learner(report).text()

    assert main(["verdict", "phase3_x", "ada", "--course", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "ada, ring",
        "Odd.",
        "inputs are 4⟨1B⟩[2J",
        "--seed 4711",
        "Traceback",
        "1 of 3 points",
        "disk is full",
    ):
        assert text in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("student", ["nobody", "..", "a/b", ""])
def test_nothing_is_kept(student: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdict", "phase3_x", student, "--course", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("labkit: no")
