"""The key of a verdict: a hash of everything that it depends on. The same key means the same verdict.

It covers the learner's cells as rebuilt by intake, the rubric of each graded exercise and which of its checks this
machine cannot judge, the modules that may replace earlier exercises, the limits of the sandbox, and the judging code.
So a notebook is judged again if and only if one of these has changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

import autograder
from autograder.cells import graded_exercise
from autograder.grading import builds_on
from autograder.judge import hidden_rubric
from autograder.measurable import left_out
from autograder.sandbox import Sandbox
from labkit import catalogue
from labkit.checks.rubric import visible_path
from labkit.text_files import read_text

SILENT = {
    "autograder": {
        *(
            "authoring",
            "batch",
            "classroom",
            "formgrader",
            "verdicts",
            "integrity",
            "intake",
            "marks",
            "mutants",
            "course",
            "tests",
        ),
        *("course_folder.py", "course_paths.py", "demo.py", "gradebook_lock.py", "instructors_input.py"),
        *("settings_file.py", "source_notebooks.py", "submissions.py", "times.py"),
    },
    "labkit": {
        *("command_line", "notebook", "search", "site"),
        *("__main__.py", "checks.py", "cli.py", "doctor.py", "edit.py", "start.py", "sync.py"),
    },
}
"""Folders and files of each package that do not affect a verdict, or are covered by the key itself."""


def verdict_key(notebook: NotebookNode, earlier: Mapping[str, str], sandbox: Sandbox, timeout: float) -> str:
    """Return the key of the verdict on a notebook rebuilt by intake.

    earlier: the learner's modules for other exercises on which this notebook builds, by name.
    timeout: seconds for one call on ranks. Raises what a broken rubric raises, and `CannotJudge`.
    """
    taken = [(cell.metadata.nbgrader.grade_id, cell.source) for cell in notebook.cells if is_solution(cell)]
    graded = [
        (cell.metadata.nbgrader.grade_id, cell.source, cell.metadata.nbgrader.points, _rubric(cell, sandbox))
        for cell in notebook.cells
        if is_grade(cell) and not is_solution(cell)
    ]
    limits = {name: repr(getattr(sandbox, name)) for name in sandbox.trait_names(config=True)}
    notes = notebook.metadata.get("labkit", {}).get("intake", [])
    chosen = [(name, earlier.get(name, ""), _stand_in(name)) for name in sorted(builds_on(notebook))]
    parts = [taken, graded, notes, chosen, sorted(limits.items()), timeout, judge_version()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _rubric(cell: NotebookNode, sandbox: Sandbox) -> tuple[str, list[str]]:
    """Return the text of a graded cell's rubric, and the checks that are left out.

    Empty for a cell that no rubric can grade, which the judge refuses.
    """
    name = graded_exercise(cell)
    if not name:
        return "", []
    rubric = hidden_rubric(catalogue.find(name))
    return read_text(rubric.path), sorted(left_out(rubric, sandbox))


def _stand_in(name: str) -> tuple[str, str]:
    """Return the replacement for an exercise on which others build, and the checks that decide whether it is used."""
    exercise = catalogue.find(name)
    checks = visible_path(exercise)
    return exercise.source("solution", "template")[0], read_text(checks) if checks.is_file() else ""


@cache
def judge_version() -> str:
    """Return a hash of the judging code and of the versions of its dependencies."""
    hashed = hashlib.sha256(f"{platform.python_version()} {version('torch')}".encode())
    folders = [(Path(autograder.__file__).resolve().parent, "autograder")]
    folders += [(folder, "labkit") for folder in catalogue.code_folders()]
    for root, package in folders:
        for path in sorted(root.rglob("*.py")):
            place = path.relative_to(root)
            if not SILENT[package] & set(place.parts):
                hashed.update(f"{package}/{place}".encode())
                hashed.update(path.read_bytes())
    return hashed.hexdigest()
