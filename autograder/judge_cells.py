"""Replaces nbgrader's `Execute`: no cell is run; each graded cell gets the judge's verdict as its output.

A stored verdict that is still valid is used (`labkit autograde` judges in advance, in parallel); otherwise the notebook
is judged here and the verdict stored. nbgrader reads the score from the graded cell's first execute_result; any output
on stderr would make the score 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Float

from autograder.feedback import outputs
from autograder.intake import Limits
from autograder.judge import TIMEOUT
from autograder.sandbox import Sandbox
from autograder.verdicts.grader import NotebookGrader
from autograder.verdicts.store import GradingTask, VerdictStore


class JudgeCells(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader has no types
    """Judges the graded cells of one submitted notebook."""

    timeout = Float(
        TIMEOUT, help="Seconds for one call of the learner's code on ranks, as if no other program ran."
    ).tag(config=True)

    def preprocess(self, notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Set each graded cell's verdict as its output, and store the verdict's key in the notebook.

        Raises errors that are not the learner's fault: then there is no mark.
        """
        converter = self.parent.parent
        coursedir = CourseDirectory(config=converter.config, log=self.log)  # the converter's own points elsewhere
        ids = resources["nbgrader"]
        work = GradingTask(ids["student"], ids["assignment"], ids["notebook"])
        limits = Limits(notebook_bytes=converter.max_notebook_bytes)
        grader = NotebookGrader(coursedir, limits, Sandbox(parent=self), self.timeout, self.log)
        verdicts = VerdictStore(Path(coursedir.root))
        try:
            judged = grader.judge(work, notebook)
        except Exception as error:  # a rubric is code and may raise anything
            failure = verdicts.fail(work, f"{type(error).__name__}: {error}", attempts=1)
            how = f"autograde it again when that is set right: here, or by `labkit autograde {work.assignment} --retry`"
            self.log.error("%s of %s: %s\n%s", work.notebook, work.student, failure.reason, how)
            raise
        if judged.fresh:
            verdicts.keep(work, judged.stored)
        else:
            verdicts.clear(work)
        verdict = judged.stored.verdict
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") in verdict.reports:
                cell.outputs = outputs(verdict, cell.metadata.nbgrader.grade_id)
                cell.execution_count = 1
        notebook.metadata.setdefault("labkit", {})["verdict"] = judged.stored.key
        return notebook, resources
