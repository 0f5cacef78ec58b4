"""Courses for benchmarks/autograde.py: the same submissions for the lab's grader and for stock nbgrader."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from autograder.cells import exercise_cell, graded_exercise
from autograder.course_folder import Course
from autograder.submissions import with_module
from labkit import catalogue

RING = "ring_allreduce"
IMPORT = "phase1_data_parallel/imports_torch"

IMPORT_CATALOGUE = f"""
[[exercise]]
number = 1
name = "{IMPORT}"
title = "Imports"
builds_on = []
minutes = 1
points = 1
"""
IMPORT_MODULE = '''"""Imports torch, and hardly uses it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["one"]


def one(tensor: Tensor) -> Tensor:
    """Ones of the shape of `tensor`."""
    ### BEGIN SOLUTION
    return torch.ones_like(tensor)
    ### END SOLUTION
'''
IMPORT_RUBRIC = '''"""Rubric of imports_torch."""

import torch

from labkit.checks import check, expect


@check(points=1, title="ones are returned")
def ones(submission, ranks):
    run = ranks(1).call(submission.one, [torch.zeros(3)])
    expect(run.values, "returned").equals([torch.ones(3)])
'''
IMPORT_IN_A_KERNEL = "assert torch.equal(one(torch.zeros(3)), torch.ones(3))"

RUBRIC_IN_A_KERNEL = """### BEGIN HIDDEN TESTS
from functools import partial
from pathlib import Path

from labkit import catalogue, virtual
from labkit.checks import Ranks, Submission, load_rubric, run_checks

exercise = catalogue.find({name!r})
rubric = load_rubric(exercise, Path({rubric!r}))
ranks = Ranks(partial(virtual, ranks="processes", trusting=False))
report = run_checks(rubric, Submission(exercise, exercise.source("yours")[0]), ranks)
report.earned
### END HIDDEN TESTS"""

STOCK_CONFIG = """c = get_config()
c.CourseDirectory.course_id = "stock"
c.CourseDirectory.root = {root!r}
c.Execute.timeout = 900
"""


@dataclass(frozen=True)
class Assignment:
    """One notebook that is submitted many times, and the course tree with its exercise."""

    tree: Path
    """`LABKIT_ROOT` during grading."""
    exercise: str
    notebook: str
    """Name of its file, without `.ipynb`."""
    ours: NotebookNode
    """The instructor's version for the lab's grader."""
    stock: NotebookNode
    """The instructor's version for stock nbgrader."""
    stock_has_magic: bool
    """Whether the exercise cell of `stock` is a module, too."""

    @property
    def phase(self) -> str:
        return self.exercise.split("/")[0]

    @property
    def module(self) -> str:
        return (self.tree / "solutions" / f"{self.exercise}.py").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """Environment of all commands that grade it."""
        commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "LABKIT_ROOT": str(self.tree), "PATH": commands}


def ring(folder: Path, *, only_needed: bool) -> Assignment:
    """Return the ring notebook; for stock nbgrader its rubric runs in a kernel.

    only_needed: leave out the cells that grading does not need, all of which stock nbgrader would run.
    """
    exercise = catalogue.find(RING)
    tree = _tree(folder)
    for part in ("solutions", "templates", "autograder", "labkit"):
        (tree / part).symlink_to(catalogue.root().resolve() / part)
    ours: NotebookNode = nbformat.read(exercise.notebook, as_version=4)
    stock: NotebookNode = nbformat.read(exercise.notebook, as_version=4)
    rubric = catalogue.root().resolve() / "autograder" / "course" / exercise.name / "rubric.py"
    graded = next(cell for cell in stock.cells if graded_exercise(cell) == RING)
    graded.source = RUBRIC_IN_A_KERNEL.format(name=exercise.name, rubric=str(rubric))
    if only_needed:
        needed = [exercise_cell(stock, exercise.name), graded]
        stock.cells = [cell for cell in stock.cells if cell in needed or cell.source.startswith("%load_ext")]
    notebook = exercise.notebook.stem
    tree = _with_notebook(tree, f"{exercise.phase}/{notebook}", ours)
    return Assignment(tree, exercise.name, notebook, ours, stock, stock_has_magic=True)


def imports_torch(folder: Path) -> Assignment:
    """Return a notebook whose exercise does next to nothing; the one for stock nbgrader does not use the lab."""
    tree = _tree(folder)
    files = {f"solutions/{IMPORT}.py": IMPORT_MODULE, f"autograder/course/{IMPORT}/rubric.py": IMPORT_RUBRIC}
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tree / "labkit").mkdir()
    (tree / "labkit" / "catalogue.toml").write_text(IMPORT_CATALOGUE)
    ours = _notebook(f"%%exercise {IMPORT}\n{IMPORT_MODULE}", f'grade("{IMPORT.split("/")[1]}")')
    stock = _notebook(IMPORT_MODULE, IMPORT_IN_A_KERNEL)
    notebook = "01_imports_torch"
    tree = _with_notebook(tree, f"{IMPORT.split('/')[0]}/{notebook}", ours)
    return Assignment(tree, IMPORT, notebook, ours, stock, stock_has_magic=False)


def our_course(assignment: Assignment, folder: Path, count: int) -> Path:
    """Create a course of the lab in which `count` learners have submitted the solution; nothing is graded yet."""
    before = os.environ.get("LABKIT_ROOT")
    os.environ["LABKIT_ROOT"] = str(assignment.tree)
    try:
        course = Course(folder)
        course.release(assignment.phase)
        released = course.released(assignment.phase, assignment.notebook)
        for number in range(count):
            module = f"{assignment.module}\n# {number}\n"
            notebook = with_module(released, assignment.exercise, module)
            course.submit(f"learner{number}", assignment.phase, assignment.notebook, notebook)
    finally:
        if before is None:
            del os.environ["LABKIT_ROOT"]
        else:
            os.environ["LABKIT_ROOT"] = before
    return folder


def stock_course(assignment: Assignment, folder: Path, count: int) -> Path:
    """Create the same course for unmodified nbgrader."""
    source = folder / "source" / assignment.phase
    source.mkdir(parents=True)
    nbformat.write(assignment.stock, source / f"{assignment.notebook}.ipynb")
    (folder / "nbgrader_config.py").write_text(STOCK_CONFIG.format(root=str(folder)))
    run([sys.executable, "-m", "nbgrader", "generate_assignment", assignment.phase], folder, assignment.environment)
    release = folder / "release" / assignment.phase / f"{assignment.notebook}.ipynb"
    for number in range(count):
        module = f"{assignment.module}\n# {number}\n"
        notebook: NotebookNode = nbformat.read(release, as_version=4)
        if assignment.stock_has_magic:
            notebook = with_module(notebook, assignment.exercise, module)
        else:
            notebook.cells[0].source = module
        handed_in = folder / "submitted" / f"learner{number}" / assignment.phase
        handed_in.mkdir(parents=True)
        nbformat.write(notebook, handed_in / f"{assignment.notebook}.ipynb")
    return folder


def run(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Return a command's output. Raises RuntimeError with the output if it fails."""
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _tree(folder: Path) -> Path:
    tree = folder / "tree"
    tree.mkdir(parents=True)
    return tree


def _with_notebook(tree: Path, name: str, notebook: NotebookNode) -> Path:
    path = tree / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return tree


def _notebook(exercise: str, graded: str) -> NotebookNode:
    plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    solution = {"nbgrader": {**plain, "grade_id": "exercise", "solution": True}}
    test = {"nbgrader": {**plain, "grade_id": "graded", "grade": True, "locked": True, "points": 1}}
    return new_notebook(
        metadata={"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}},
        cells=[
            new_code_cell(exercise, id="exercise", metadata=solution),
            new_code_cell(graded, id="graded", metadata=test),
        ],
    )
