"""One rebuilt notebook to one verdict."""

from __future__ import annotations

import logging

from nbformat import NotebookNode
from nbgrader.utils import compute_checksum, is_grade, is_solution

from autograder.cells import MAGIC, exercise_cell, graded_exercise, module_text
from autograder.feedback.pictures import pictures
from autograder.judge import TIMEOUT, BrokenRubric, Judge, hidden_rubric, nothing_earned
from autograder.sandbox import Sandbox
from autograder.verdict import Verdict
from labkit import exercises
from labkit.checks import Report

UNTOUCHED = "This is the template as it was released: there is nothing to grade yet."
EMPTY = "The exercise cell is empty or missing: there is nothing to grade."


def judge_notebook(
    notebook: NotebookNode, sandbox: Sandbox, timeout: float = TIMEOUT, log: logging.Logger | None = None
) -> Verdict:
    """Judge all graded cells of a notebook that intake has rebuilt, in one sandbox.

    timeout: seconds for one call of the learner's code on ranks. Raises what is not the learner's fault, such as
    `BrokenRubric`: then there is no mark.
    """
    log = log or logging.getLogger(__name__)
    notes = list(notebook.metadata.get("labkit", {}).get("intake", []))
    reports = {}
    with Judge(sandbox, timeout) as judge:
        for cell in notebook.cells:
            if cell.cell_type == "code" and is_grade(cell) and not is_solution(cell):
                reports[cell.metadata.nbgrader.grade_id] = _judge(cell, notebook, judge, notes, log)
    drawn = {cell: pictures(report) for cell, report in reports.items()}
    return Verdict(reports, tuple(notes), drawn)


def _judge(cell: NotebookNode, notebook: NotebookNode, judge: Judge, notes: list[str], log: logging.Logger) -> Report:
    name = graded_exercise(cell)
    if name is None:
        raise BrokenRubric(f'graded cell {cell.metadata.nbgrader.grade_id!r} is not one line: grade("EXERCISE")')
    exercise = exercises.find(name)
    rubric = hidden_rubric(exercise)
    if rubric.points != cell.metadata.nbgrader.points:
        told = cell.metadata.nbgrader.points
        raise BrokenRubric(f"{name}: the notebook says {told} points, its rubric {rubric.points:g} ({rubric.path})")
    work = exercise_cell(notebook, exercise.name)
    if work is None:
        raise BrokenRubric(f"the released notebook has no cell '{MAGIC} {exercise.name}'")
    source = module_text(work.source)
    if not source.strip():
        notes.append(EMPTY)
        return nothing_earned(rubric)
    if compute_checksum(work) == work.metadata.nbgrader.get("checksum"):
        notes.append(UNTOUCHED)
        return nothing_earned(rubric)
    report = judge.judge(exercise, source)
    for result in report.results:
        if result.fault:
            log.warning("the check %r met what it did not foresee:\n%s", result.title, result.fault)
    return report
