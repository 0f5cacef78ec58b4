"""An instructor's own exercises outside of the lab: everything finds them, and the lab's tree stays as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.sandbox import Sandbox
from labkit import catalogue
from labkit.cli import main

NAME = "phase4_production/mean_loss"
NOTEBOOK = "50_mean_loss"
FILES = ("README.md", "labkit", "autograder", "solutions", "templates", "notebooks", "docs", "tests", "cluster")

GIVEN = '''"""Given parts of mean_loss: argument checks."""

from torch import Tensor


def require_vector(losses: Tensor) -> None:
    """Raise ValueError unless `losses` has one dimension."""
    if losses.dim() != 1:
        raise ValueError(f"losses must have one dimension, got {losses.dim()}")
'''

SCENARIOS = '''"""Programs of the checks of mean_loss, whose source is sent to the ranks."""

from torch import Tensor


def of_share(share: Tensor) -> Tensor:
    """On a rank: return the mean of all ranks' numbers."""
    from labkit.exercises import mean_loss

    return mean_loss.mean_loss(share)
'''

SPY = '''"""Right, after a look at files that a submission must not see, or not write."""

from pathlib import Path

import torch
import torch.distributed as dist
from labkit.course.{package}.given import require_vector

__all__ = ["mean_loss"]


def mean_loss(losses):
    require_vector(losses)
    own = Path({own!r})
    if [path.name for path in own.iterdir()] != ["labkit"]:
        raise LookupError
    try:
        (own / "labkit" / "left").write_text("")
    except OSError:
        both = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
        dist.all_reduce(both)
        return both[0] / both[1]
'''

CHECKS = """
import json, sys
from pathlib import Path

from autograder.judge import Judge
from autograder.sandbox import Sandbox
from labkit import catalogue
from labkit.cli import main

own, spy = map(Path, sys.argv[1:])
exercise = catalogue.find("mean_loss")
assert exercise.root == own == catalogue.all_exercises()[-1].root
assert {exercise.folder(owner) for owner in ("labkit", "autograder", "tests")} == {
    own / owner / "course" / exercise.name for owner in ("labkit", "autograder", "tests")
}
assert main(["sync"]) == 0
assert main(["sync", "--check"]) == 0
for cluster in ("virtual", "local"):
    assert main(["check", "mean_loss", "--file", str(exercise.paths["solution"]), "--cluster", cluster]) == 0, cluster
assert main(["check", "mean_loss", "--file", str(exercise.paths["template"])]) == 1
if Sandbox().available:
    with Judge(Sandbox()) as judge:
        report = judge.judge(exercise, spy.read_text())
    assert report.earned == 3, report
"""

GRADES = """
import json, sys
from pathlib import Path

from autograder.course_folder import Course
from autograder.mutants import Mutants
from autograder.submissions import with_module
from labkit import catalogue

folder, notebook = sys.argv[1:]
exercise = catalogue.find("mean_loss")
course, phase = Course(Path(folder)), exercise.phase
course.release(phase)
released = course.released(phase, notebook)
assert "NotImplementedError" in str(released)
modules = {"ada": exercise.source("solution")[0], "ben": Mutants(exercise).text("mean_of_means")}
course.submit("eve", phase, notebook, released)
for student, text in modules.items():
    course.submit(student, phase, notebook, with_module(released, exercise.name, text))
course.autograde(phase)
marks = {mark.student: [mark.score, mark.max_score] for mark in course.marks(phase) if mark.notebook == notebook}
print("RESULT", json.dumps([course.notebooks(phase), marks]))
"""


def run(own: Path | None, *command: str | Path) -> str:
    """Run Python in the lab's folder with this folder of own exercises; return its output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LABKIT_")}
    environment |= {"LABKIT_WORKSPACE": os.environ["LABKIT_WORKSPACE"]}
    if own is not None:
        environment[catalogue.OWN_ROOT] = str(own)
    done = subprocess.run(
        [sys.executable, *command], cwd=catalogue.root(), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def lab_files() -> dict[str, tuple[int, int]]:
    """Size and time of each file of the lab's tree."""
    files = [path for name in FILES for path in [catalogue.root() / name, *(catalogue.root() / name).rglob("*")]]
    kept = [path for path in files if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in kept}


def fill_in(own: Path) -> None:
    """Write the guide's exercise, with a given part that it imports and a program of its checks."""
    page = (catalogue.root() / "docs/new_exercise.md").read_text()
    package = NAME.replace("/", ".")
    for path, text in re.findall(r"^```python\n# (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if path.startswith("solutions/"):
            text = text.replace(
                "from torch import Tensor\n",
                f"from torch import Tensor\n\nfrom labkit.course.{package}.given import require_vector\n",
            ).replace("    # TODO 1", "    require_vector(losses)\n    # TODO 1")
        if path.endswith("/checks.py"):
            text = text.replace(
                "from labkit.checks import",
                f"from labkit.course.{package}.scenarios import of_share\nfrom labkit.checks import",
            ).replace(
                "ranks(3).call(submission.mean_loss, shares)",
                "ranks(3).call(submission.used_by(of_share), shares)",
            )
        assert (own / path).is_file(), "the command has made every file that the guide fills in"
        (own / path).write_text(text)
    folder = own / "labkit" / "course" / NAME
    (folder / "given.py").write_text(GIVEN)
    (folder / "scenarios.py").write_text(SCENARIOS)


def judge_mutants(own: Path) -> None:
    """Start the command as the guide tells, in the folder of own exercises."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [Path(sys.executable).with_name("labkit"), "judge-mutants", "mean_loss"],
        cwd=own,
        env=environment | {catalogue.OWN_ROOT: str(own)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "all as stated; wrote" in done.stdout


UNFILLED = """
from autograder.authoring import completeness

assert completeness.faults() == []
print(*completeness.unfilled(), sep="\\n")
"""
"""Prints what `labkit new-exercise --check` says of places to fill in. A process that has imported the lab's packages
before does not find those of own exercises."""


def test_own_exercises_work_outside_of_the_lab_and_leave_it_alone(tmp_path: Path) -> None:
    own, before = tmp_path / "unsere Übungen", lab_files()
    output = run(None, "-m", "labkit", "new-exercise", NAME, "--into", own)
    assert output.splitlines()[-1] == f"  export LABKIT_EXERCISES='{own}'"
    run(own, "-m", "pytest", "-q", "-p", "no:cacheprovider", own / "tests")

    fill_in(own)
    spy = tmp_path / "spy.py"
    spy.write_text(SPY.format(own=str(own), package=NAME.replace("/", ".")))
    run(own, "-c", CHECKS, own, spy)
    if Sandbox().available:
        judge_mutants(own)
        assert "`mean_of_means`" in (own / "autograder/course/README.md").read_text()
        output = run(own, "-c", GRADES, tmp_path / "course", NOTEBOOK)
        notebooks, marks = json.loads(output.rpartition("RESULT ")[2])
        assert NOTEBOOK in notebooks and len(notebooks) > 1, "the phase has exercises of both folders"
        assert marks == {"ada": [3.0, 3.0], "ben": [1.0, 3.0], "eve": [0.0, 3.0]}
    assert "TODO(author)" in run(own, "-c", UNFILLED)
    assert lab_files() == before


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an exercise that the catalogue lists after the lab's."""
    folder = tmp_path / "own"
    (folder / "labkit").mkdir(parents=True)
    monkeypatch.setenv(catalogue.OWN_ROOT, str(folder))
    enter(folder, 50, "phase2_advanced/mean_loss")
    return folder


def enter(folder: Path, number: int, name: str) -> None:
    fields = f'number = {number}\nname = "{name}"\ntitle = "T"\nbuilds_on = ["trainer"]\nminutes = 45\npoints = 3\n'
    (folder / "labkit/catalogue.toml").write_text(f"[[exercise]]\n{fields}")


def test_own_exercises_come_after_those_of_the_lab(own: Path) -> None:
    *lab, last = catalogue.all_exercises()
    assert {exercise.root for exercise in lab} == {catalogue.root()} and last.root == own
    assert lab == catalogue.exercises_in(catalogue.root()) and [last] == catalogue.exercises_in(own)
    assert last.notebook == own / "notebooks/phase2_advanced/50_mean_loss.ipynb"
    assert catalogue.find("trainer") in last.builds_on and lab[-1].following == last
    assert last in catalogue.several("phase2_advanced")


@pytest.mark.parametrize(
    ("number", "name", "problem"),
    [
        (50, "phase2_advanced/trainer", "the short name of an earlier exercise, phase1_data_parallel/trainer: rename"),
        (3, "phase2_advanced/mean_loss", "number 3 of phase2_advanced/mean_loss must be above"),
    ],
)
def test_what_clashes_with_the_lab_is_named(
    own: Path, number: int, name: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(own, number, name)
    assert main(["progress"]) == 2
    error = capsys.readouterr().err
    assert f"labkit: {own}/labkit/catalogue.toml: " in error and problem in error


def test_a_folder_that_has_moved_is_named(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.rename(own.with_name("moved"))
    assert main(["check", "mean_loss"]) == 2
    assert f"labkit: LABKIT_EXERCISES is {own}, where there is no labkit/catalogue.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["phase2_advanced/trainer"], "there is already phase1_data_parallel/trainer"),
        (["phase2_advanced/mean_loss"], "there is already phase2_advanced/mean_loss, in {own}"),
        (["phase2_advanced/other", "--number", "49"], "49 is not a number for phase2_advanced"),
        (["phase2_advanced/other", "--into", "{lab}/course/mine"], "overlaps with the lab in {lab}"),
        (["phase2_advanced/other", "--into", "{file}/mine"], "{file}/mine/labkit cannot be written: Not a directory"),
        (["phase2_advanced/trainer", "--into", "{new}"], "there is already phase1_data_parallel/trainer"),
    ],
)
def test_an_exercise_that_cannot_be_made_is_refused(
    own: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, new, before = own.parent / "file", own.parent / "new", sorted(own.rglob("*"))
    file.touch()
    places = {"own": own, "lab": catalogue.root(), "file": file, "new": new}
    assert main(["new-exercise", *(word.format(**places) for word in words)]) == 2
    assert problem.format(**places) in capsys.readouterr().err
    assert sorted(own.rglob("*")) == before and not new.exists()
