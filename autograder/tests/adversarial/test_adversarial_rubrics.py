"""Hostile submissions against rubrics of the course: the marks each must get and why, by its header comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from judged_here import skip_unless_judged

from autograder.feedback import for_learner
from autograder.judge import Judge, hidden_rubric
from autograder.mutants import Mutants
from autograder.sandbox import Sandbox
from labkit import catalogue
from labkit.catalogue import Exercise

pytestmark = [
    pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox"),
]

FILES = sorted(catalogue.root().glob("tests/course/*/*/adversaries/*.py"))


def told(text: str, what: str) -> str:
    """Return this field of a file's header comments; empty when it is missing."""
    found = re.search(rf"^# {what}: (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def handed_in(exercise: Exercise, text: str) -> str:
    """Return the module: `text`, appended to the solution or a wrong solution of the rubric if it is based on one."""
    kind, _, name = told(text, "base").partition("/")
    if kind == "mutants":
        return Mutants(exercise).text(name) + text
    return (exercise.source("solution")[0] if kind == "solution" else "") + text


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_a_rubric_gives_what_is_deserved_with_its_reason(path: Path) -> None:
    exercise, text = catalogue.find(path.parts[-3]), path.read_text()
    others = {earlier.name: earlier.source("solution")[0] for earlier in exercise.builds_on}
    checks = told(text, "checks").split()
    sandbox = Sandbox()
    skip_unless_judged(hidden_rubric(exercise), sandbox, checks)
    with Judge(sandbox) as judge:
        report = judge.judge(exercise, handed_in(exercise, text), others, checks)
    assert len(report.results) == len(checks)
    shown = for_learner(report).text()
    if told(text, "open") and report.earned != float(told(text, "marks")):
        pytest.xfail(told(text, "open"))
    assert report.earned == float(told(text, "marks")), shown
    assert any(wanted in shown for wanted in told(text, "feedback").split(" | ")), shown
