"""What learners receive: questions in plain cells, and no answer in the notebook's text."""

from __future__ import annotations

import nbformat
import pytest
from nbgrader.preprocessors import ClearOutput, ClearSolutions

from labkit.catalogue import Exercise, all_exercises
from labkit.questions import Choice, Line, Number, questions_of


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.short_name)
def test_a_released_notebook_asks_its_questions_and_holds_no_answer(exercise: Exercise) -> None:
    notebook, resources = nbformat.read(exercise.notebook, as_version=4), {}
    for preprocessor in (ClearSolutions(), ClearOutput()):
        notebook, resources = preprocessor.preprocess(notebook, resources)
    texts = {cell.source: cell for cell in notebook.cells}
    for question in questions_of(exercise):
        assert isinstance(question, Number | Choice | Line)
        cell = texts[f"%question {question.name}"]
        assert cell.cell_type == "code" and not cell.metadata.get("nbgrader") and not cell.outputs
        words = [question.why] if isinstance(question, Choice) else [question.why, question.solution]
        assert not [text for text in texts for word in words if len(word) > 4 and word in text]
    empty = [cell for cell in notebook.cells if "YOUR CODE HERE" in cell.source]
    assert [cell.source.split()[0] for cell in empty] == ["%%exercise"]
