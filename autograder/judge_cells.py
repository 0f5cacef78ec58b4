"""In the place of nbgrader's `Execute`: no cell is run here; each graded cell gets the judge's verdict as its output.

A verdict that is kept and still counts is taken as it is (`labkit autograde` judges ahead, side by side); else the
notebook is judged here and the verdict kept. nbgrader reads the score from the graded cell's first execute_result;
anything on stderr would make it 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Float

from autograder.desk.store import Verdicts, Work
from autograder.desk.work import Desk
from autograder.feedback import outputs
from autograder.intake import Limits
from autograder.judge import TIMEOUT
from autograder.sandbox import Sandbox


class JudgeCells(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader has no types
    """Judges the graded cells of one submitted notebook."""

    timeout = Float(
        TIMEOUT, help="Seconds for one call of the learner's code on ranks, as if no other program ran."
    ).tag(config=True)

    def preprocess(self, notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Make each graded cell's verdict its output, and note its key in the notebook.

        Raises what is not the learner's fault: then there is no mark.
        """
        converter = self.parent.parent
        coursedir = CourseDirectory(config=converter.config, log=self.log)  # the converter's own is led elsewhere
        ids = resources["nbgrader"]
        work = Work(ids["student"], ids["assignment"], ids["notebook"])
        limits = Limits(notebook_bytes=converter.max_notebook_bytes)
        desk = Desk(coursedir, limits, Sandbox(parent=self), self.timeout, self.log)
        judged = desk.judge(work, notebook)
        if judged.fresh:
            Verdicts(Path(coursedir.root)).keep(work, judged.kept)
        verdict = judged.kept.verdict
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") in verdict.reports:
                cell.outputs = outputs(verdict, cell.metadata.nbgrader.grade_id)
                cell.execution_count = 1
        notebook.metadata.setdefault("labkit", {})["verdict"] = judged.kept.key
        return notebook, resources
