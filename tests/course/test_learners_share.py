"""Enough of every solution is the learner's."""

from __future__ import annotations

import ast

import pytest

from labkit.catalogue import Exercise, all_exercises

LEARNERS_SHARE = 0.25
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"

each = pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.short_name)


def code_lines(source: str) -> tuple[int, int]:
    """Return the lines of code, without blank lines, comments and docstrings: all of them, and the learner's."""
    text = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    count = learners = 0
    inside = False
    for number, line in enumerate(source.splitlines(), 1):
        words = line.strip()
        inside = words == BEGIN or (inside and words != END)
        if words and not words.startswith("#") and number not in text:
            count += 1
            learners += inside
    return count, learners


def test_text_and_blank_lines_are_not_counted_as_code() -> None:
    source = f'"""Module."""\n\nx = 1  # one\n{BEGIN}\n# why\ny = [\n    2,\n]\n{END}\nz = """\ntext"""\n"""Of z."""\n'
    assert code_lines(source) == (6, 3)


@each
def test_a_quarter_of_the_code_is_the_learners(exercise: Exercise) -> None:
    code, learners = code_lines(exercise.source("solution")[0])
    assert learners >= LEARNERS_SHARE * code, f"{learners} of {code} lines of code: {learners / code:.0%}"
