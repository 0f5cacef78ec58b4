"""Checks as learners start them: the graded cell, the shell, hints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checks.course import SOLUTION

from labkit import catalogue
from labkit.checks import check_exercise, command, grade, hints

pytestmark = pytest.mark.usefixtures("course")


def test_grade_gives_points_and_prints_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    catalogue.find("largest").save(SOLUTION.replace("MAX", "MIN"))
    assert grade("largest") == 1.0
    out, err = capfd.readouterr()
    assert "FAIL 0/2   the largest of all" in out
    assert "your module, on virtual ranks" in out
    # nbgrader gives 0 for a graded cell that writes there
    assert err == ""


def test_grade_in_a_notebook_displays_html(course: Path) -> None:
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "from IPython.utils.capture import capture_output\n"
        "from labkit import grade\n"
        "with capture_output() as captured:\n"
        "    points = grade('largest')\n"
        "assert points == 0.0\n"
        "assert captured.stderr == ''\n"
        "(shown,) = captured.outputs\n"
        "assert 'to do' in shown.data['text/html'] and 'to write' in shown.data['text/html'], shown.data\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_same_checks_on_real_processes() -> None:
    report = check_exercise(catalogue.find("largest"), SOLUTION, cluster="local")
    assert report.passed, report.text()


def test_the_shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    right = tmp_path / "right.py"
    right.write_text(SOLUTION)
    assert command.main("largest", file=right) == 0
    assert "largest: 3 of 3 points (your file, on virtual ranks)" in capsys.readouterr().out
    assert command.main("largest") == 1
    assert "you have not saved a module yet" in capsys.readouterr().out


def test_the_shell_checks_what_is_begun_of_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main("phase1_small") == 1
    assert capsys.readouterr().out.startswith("largest: not started: run its notebook, or copy templates/phase1_small/")
    catalogue.find("largest").save(SOLUTION)
    assert command.main("phase1_small") == 0
    assert capsys.readouterr().out.endswith("\n\nlargest: 3 of 3 points (your module, on virtual ranks)\n")


def test_the_shell_with_nothing_to_check(capsys: pytest.CaptureFixture[str], course: Path) -> None:
    assert command.main("largset") == 2
    assert "did you mean largest?" in capsys.readouterr().err
    assert command.main("largest", cluster="slurn") == 2
    assert "unknown cluster 'slurn'" in capsys.readouterr().err
    (course / "labkit/checks/visible/phase1_small/largest.py").unlink()
    assert command.main("largest") == 2
    assert "has no checks" in capsys.readouterr().err


def test_hints_come_one_at_a_time_and_are_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    exercise = catalogue.find("largest")
    assert hints.next_hint(exercise).given == ("think",)
    assert hints.main("largest") == 0
    assert "hint 2 of 2\nall_reduce(tensor, MAX)\n\nthat was the last hint" in capsys.readouterr().out
    assert len(hints.next_hint(exercise).given) == 2
    hints.forget(exercise)
    assert len(hints.next_hint(exercise).given) == 1
