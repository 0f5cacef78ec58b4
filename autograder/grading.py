"""Judging one rebuilt notebook."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nbformat import NotebookNode
from nbgrader.utils import compute_checksum, is_grade, is_solution

from autograder.cells import exercise_cell, exercise_of, graded_exercise, module_text
from autograder.feedback.pictures import pictures
from autograder.judge import TIMEOUT, BrokenRubric, Judge, hidden_rubric, nothing_earned
from autograder.sandbox import Sandbox
from autograder.verdict import Verdict
from labkit import catalogue
from labkit.checks import Report, Rubric
from labkit.checks.check_result import number
from labkit.exercise_cells import MAGIC

UNTOUCHED = "This is the template as it was released: there is nothing to grade yet."
EMPTY = "The exercise cell is empty: there is nothing to grade."


def judge_notebook(
    notebook: NotebookNode,
    sandbox: Sandbox,
    timeout: float = TIMEOUT,
    log: logging.Logger | None = None,
    earlier: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge all graded cells of a notebook rebuilt by intake, in one sandbox.

    timeout: seconds for one call of the learner's code on ranks. earlier: modules that this learner submitted for
    exercises of other notebooks, by the exercise's full name; for an exercise of this notebook, its own cell counts.
    Raises errors that are not the learner's fault, such as `BrokenRubric` and `CannotJudge`: then there is no mark.
    """
    log = log or logging.getLogger(__name__)
    notes = list(notebook.metadata.get("labkit", {}).get("intake", []))
    reports = {}
    own = {**(earlier or {}), **modules_of(notebook)}
    with Judge(sandbox, timeout) as judge:
        for cell in notebook.cells:
            if is_judged(cell):
                reports[cell.metadata.nbgrader.grade_id] = _judge(cell, notebook, judge, own, notes, log)
    drawn = {cell: pictures(report) for cell, report in reports.items()}
    return Verdict(reports, tuple(notes), drawn)


def modules_of(notebook: NotebookNode) -> dict[str, str]:
    """Return the modules that a learner wrote in a notebook rebuilt by intake, by the exercise's full name.

    Empty cells and unchanged templates are left out.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and is_solution(cell)]
    written = [cell for cell in cells if compute_checksum(cell) != cell.metadata.nbgrader.get("checksum")]
    modules = {exercise_of(cell.source): module_text(cell.source) for cell in written}
    return {name: text for name, text in modules.items() if name and text.strip()}


def builds_on(notebook: NotebookNode) -> set[str]:
    """Return full names of the exercises that a notebook's graded exercises build on: possible keys of `earlier`."""
    graded = [name for cell in notebook.cells if (name := graded_exercise(cell)) is not None]
    return {earlier.name for name in graded for earlier in catalogue.find(name).builds_on}


def rubric_of(cell: NotebookNode) -> Rubric:
    """Return the rubric of a graded cell. Raises `NoRubric`, or `BrokenRubric` when it cannot grade this cell."""
    name = graded_exercise(cell)
    if name is None:
        raise BrokenRubric(f'graded cell {cell.metadata.nbgrader.grade_id!r} is not one line: grade("EXERCISE")')
    rubric = hidden_rubric(catalogue.find(name))
    if rubric.points != cell.metadata.nbgrader.points:
        points = cell.metadata.nbgrader.points
        raise BrokenRubric(f"{name}: the notebook says {points} points, its rubric {rubric.points:g} ({rubric.path})")
    return rubric


def is_judged(cell: NotebookNode) -> bool:
    """Return whether a rubric grades this cell; manually graded answers are not judged."""
    return cell.cell_type == "code" and is_grade(cell) and not is_solution(cell)


def _judge(
    cell: NotebookNode,
    notebook: NotebookNode,
    judge: Judge,
    own: Mapping[str, str],
    notes: list[str],
    log: logging.Logger,
) -> Report:
    rubric = rubric_of(cell)
    exercise = rubric.exercise
    work = exercise_cell(notebook, exercise.name)
    if work is None:
        raise BrokenRubric(f"the released notebook has no cell '{MAGIC} {exercise.name}'")
    source = module_text(work.source)
    if not source.strip():
        missing: Mapping[str, str] = notebook.metadata.get("labkit", {}).get("missing", {})
        reason = missing.get(exercise.name) or EMPTY
        # the instructor's table shows the last note
        notes[:] = [*(note for note in notes if note != reason), reason]
        return nothing_earned(rubric)
    if compute_checksum(work) == work.metadata.nbgrader.get("checksum"):
        notes.append(UNTOUCHED)
        return nothing_earned(rubric)
    chosen = judge.stand_ins(exercise, own)
    notes += [note for note in chosen.notes if note not in notes]
    report = judge.judge(exercise, source, chosen.modules)
    if report.left_out:
        log.warning(report.left_out)
        counted = f"{number(report.earned)} of the other {number(report.points)}"
        notes.append(f"{report.left_out}. {counted} count as {number(report.marks)} of {number(report.all_points)}.")
    for result in report.results:
        if result.fault:
            log.warning("the check %r met what it did not foresee:\n%s", result.title, result.fault)
    return report
