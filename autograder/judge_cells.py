"""In the place of nbgrader's `Execute`: no cell is run here; each graded cell gets the judge's verdict as its output.

nbgrader reads the score from the graded cell's first execute_result; anything on stderr would make it 0.
"""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Float

from autograder.feedback import outputs
from autograder.grading import judge_notebook
from autograder.judge import TIMEOUT
from autograder.sandbox import Sandbox


class JudgeCells(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader has no types
    """Judges the graded cells of one submitted notebook."""

    timeout = Float(TIMEOUT, help="Seconds for one call of the learner's code on ranks.").tag(config=True)

    def preprocess(self, notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Make each graded cell's verdict its output. Raises what is not the learner's fault: then there is no mark."""
        verdict = judge_notebook(notebook, Sandbox(parent=self), self.timeout, self.log)
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") in verdict.reports:
                cell.outputs = outputs(verdict, cell.metadata.nbgrader.grade_id)
                cell.execution_count = 1
        return notebook, resources
