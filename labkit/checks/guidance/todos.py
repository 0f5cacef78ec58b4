"""The TODOs of an exercise: their numbers, the functions that they are in, and which of them a module leaves open.

A template marks what is to be written with a comment, `# TODO 2. ...`, and a gap, `raise NotImplementedError()`. A TODO
may have several gaps, which follow its comment.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from labkit.catalogue import Exercise, MissingModule

_COMMENT = re.compile(r"\s*# TODO (\d{1,2})\b")
_GAP = re.compile(r"\s*raise NotImplementedError(\(\))?\s*(#.*)?$")
_SOLUTION = re.compile(r"\s*### BEGIN SOLUTION")
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Todo:
    """One gap of a module."""

    number: int
    """Number of its TODO; 0 if the module does not number it."""
    function: str
    """`ring_reduce_scatter`, `PipelineStage.backward`; empty outside functions."""
    line: int

    @property
    def text(self) -> str:
        """`TODO 2 in ring_reduce_scatter`."""
        parts = [f"TODO {self.number}" if self.number else "", self.function]
        return " in ".join(part for part in parts if part) or "a part"


def todos(exercise: Exercise) -> list[Todo]:
    """Return the gaps of the exercise's template, or those that its solution fills, in the order of the file."""
    try:
        text, _ = exercise.source("template", "solution")
    except MissingModule:
        return []
    return _gaps(text)


def numbers(exercise: Exercise) -> list[int]:
    """Return the numbers of the exercise's TODOs, in ascending order."""
    return sorted({todo.number for todo in todos(exercise) if todo.number})


def unwritten(exercise: Exercise, source: str) -> list[Todo]:
    """Return the gaps that the module text `source` leaves open."""
    lines = enumerate(source.splitlines(), 1)
    return [todo_at(exercise, source, line) for line, text in lines if _GAP.match(text)]


def todo_at(exercise: Exercise, source: str, line: int) -> Todo:
    """Return the TODO to which a line of the module text `source` belongs, as far as it is known.

    The nearest comment above it in the same function decides; if the learner has removed the comment, the function of
    that name in the template.
    """
    lines, (function, begin) = source.splitlines(), _function(source, line)
    for text in reversed(lines[begin - 1 : line]):
        if comment := _COMMENT.match(text):
            return Todo(int(comment[1]), function, line)
    known = [todo.number for todo in todos(exercise) if todo.function == function]
    return Todo(known[0] if known and function else 0, function, line)


def _gaps(text: str) -> list[Todo]:
    gaps, number = [], 0
    for line, content in enumerate(text.splitlines(), 1):
        if comment := _COMMENT.match(content):
            number = int(comment[1])
        elif _GAP.match(content) or _SOLUTION.match(content):
            gaps.append(Todo(number, _function(text, line)[0], line))
    return gaps


def _function(text: str, line: int) -> tuple[str, int]:
    """Return the qualified name of the function around a line, and its first line; ("", 1) if there is none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", 1
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        around = next(
            (
                node
                for node in body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.lineno <= line <= (node.end_lineno or node.lineno)
            ),
            None,
        )
        if around is None:
            return "", 1
        names.append(around.name)
        if not isinstance(around, ast.ClassDef):
            return ".".join(names)[:_LONGEST_NAME], around.lineno
        body = around.body
