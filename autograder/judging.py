"""In the place of nbgrader's `Execute`: no cell is run here; each graded cell gets the judge's verdict as its output.

nbgrader reads the score from the graded cell's first execute_result; anything on stderr would make it 0.
"""

from __future__ import annotations

from html import escape
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import compute_checksum, is_grade, is_solution
from traitlets import Float

from autograder.cells import MAGIC, exercise_cell, graded_exercise, module_text
from autograder.judge import TIMEOUT, BrokenRubric, Judge, for_learner, hidden_rubric, nothing_earned
from autograder.sandbox import Sandbox
from labkit import exercises
from labkit.checks import Report

UNTOUCHED = "This is the template as it was released: there is nothing to grade yet."
EMPTY = "The exercise cell is empty or missing: there is nothing to grade."


class JudgeCells(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader has no types
    """Judges the graded cells of one submitted notebook, all in one sandbox."""

    timeout = Float(TIMEOUT, help="Seconds for one call of the learner's code on ranks.").tag(config=True)

    def preprocess(self, notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Make each graded cell's verdict its output. Raises what is not the learner's fault: then there is no mark."""
        with Judge(Sandbox(parent=self), self.timeout) as judge:
            for cell in notebook.cells:
                if cell.cell_type == "code" and is_grade(cell) and not is_solution(cell):
                    self._judge(cell, notebook, judge)
        return notebook, resources

    def _judge(self, cell: NotebookNode, notebook: NotebookNode, judge: Judge) -> None:
        name = graded_exercise(cell)
        if name is None:
            raise BrokenRubric(f'graded cell {cell.metadata.nbgrader.grade_id!r} is not one line: grade("EXERCISE")')
        exercise = exercises.find(name)
        rubric = hidden_rubric(exercise)
        if rubric.points != cell.metadata.nbgrader.points:
            told = cell.metadata.nbgrader.points
            raise BrokenRubric(f"{name}: the notebook says {told} points, its rubric {rubric.points:g} ({rubric.path})")
        notes = list(notebook.metadata.get("labkit", {}).get("intake", []))
        work = exercise_cell(notebook, exercise.name)
        if work is None:
            raise BrokenRubric(f"the released notebook has no cell '{MAGIC} {exercise.name}'")
        source = module_text(work.source)
        if not source.strip():
            notes, report = [*notes, EMPTY], nothing_earned(rubric)
        elif compute_checksum(work) == work.metadata.nbgrader.get("checksum"):
            notes, report = [*notes, UNTOUCHED], nothing_earned(rubric)
        else:
            report = judge.judge(exercise, source)
            for result in report.results:
                if result.fault:
                    self.log.warning("the check %r met what it did not foresee:\n%s", result.title, result.fault)
        cell.outputs = verdict(for_learner(report), notes)
        cell.execution_count = 1


def verdict(report: Report, notes: list[str]) -> list[NotebookNode]:
    """Outputs of a graded cell: what a person reads, then the number that nbgrader reads."""
    text = "\n".join([*notes, *(result.text() for result in report.results), report.summary])
    remarks = "".join(f"<p>{escape(note)}</p>" for note in notes)
    html = f'<div class="labkit-feedback">{remarks}{report._repr_html_()}</div>'
    return [
        new_output("display_data", {"text/html": html, "text/plain": text}),
        new_output("execute_result", {"text/plain": repr(float(report.earned))}, execution_count=1),
    ]
