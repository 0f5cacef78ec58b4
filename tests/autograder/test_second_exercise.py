"""A new exercise takes its own files and no change to the lab: sync, check, release and autograde find them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import second_exercise

from autograder.sandbox import Sandbox
from labkit import catalogue

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

STEPS = """
import contextlib, io, json, sys
from pathlib import Path

import labkit
from autograder.course_folder import Course
from autograder.submissions import with_module
from labkit.cli import main

tree, folder, name, notebook, *modules = sys.argv[1:]
assert Path(labkit.__file__).is_relative_to(tree)


def command(*words):
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(words) == 0, told.getvalue()
    return told.getvalue()


written = command("sync")
command("sync", "--check")
checked = command("check", "pass_it_on", "--file", modules[0])

phase = name.split("/")[0]
course = Course(Path(folder))
course.release(phase)
released = course.released(phase, notebook)
course.submit("untouched", phase, notebook, released)
for path in map(Path, modules):
    course.submit(path.stem, phase, notebook, with_module(released, name, path.read_text()))
course.autograde(phase)
course.feedback(phase)
marks = {mark.student: [mark.score, mark.max_score] for mark in course.marks(phase) if mark.notebook == notebook}
print(json.dumps({"written": written.split(), "checked": checked, "marks": marks}))
"""


def test_a_new_exercise_needs_no_change_to_the_lab(tmp_path: Path) -> None:
    tree, name, notebook = tmp_path / "tree", second_exercise.NAME, second_exercise.NOTEBOOK
    for part in ("labkit", "autograder", "solutions", "templates", "notebooks"):
        shutil.copytree(catalogue.root() / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    second_exercise.add_to(tree)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LABKIT_")}
    environment |= {"PYTHONPATH": str(tree), "LABKIT_WORKSPACE": str(tmp_path / "workspace")}

    solution = tree / "solutions" / f"{name}.py"
    mutant = tmp_path / "sends_twice.py"
    mutant.write_text(second_exercise.SENDS_TWICE)
    command = [sys.executable, "-c", STEPS, tree, tmp_path / "course", name, notebook, solution, mutant]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = json.loads(done.stdout)

    assert {f"templates/{name}.py", f"notebooks/{second_exercise.PHASE}/{notebook}.ipynb"} <= set(told["written"])
    assert "NotImplementedError" in (tree / "templates" / f"{name}.py").read_text()
    assert "3 of 3 points" in told["checked"]
    assert told["marks"] == {"untouched": [0.0, 3.0], "pass_it_on": [3.0, 3.0], "sends_twice": [2.0, 3.0]}
    page = tmp_path / "course" / "feedback" / "sends_twice" / second_exercise.PHASE / f"{notebook}.html"
    assert "one message from each rank" in page.read_text()
