"""Find the questions of an exercise: `labkit/course/PHASE/NAME/questions.py` with its list `QUESTIONS`."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from labkit.catalogue import Exercise, all_exercises
from labkit.questions.kinds import Question
from labkit.text_files import read_text


class UnknownQuestion(ValueError):
    """There is no question of that name; the message suggests similar names."""


def questions_path(exercise: Exercise) -> Path:
    """File of the exercise's questions."""
    return exercise.folder("labkit") / "questions.py"


def questions_of(exercise: Exercise) -> tuple[Question, ...]:
    """Return the exercise's questions, in the order of their file; none if it has no file."""
    path = questions_path(exercise)
    return _loaded(exercise.name, path, path.stat().st_mtime_ns) if path.is_file() else ()


def find(name: str) -> tuple[Exercise, Question]:
    """Return the question of that name, with its exercise. Raises `UnknownQuestion`."""
    for exercise, question in _all():
        if question.name == name:
            return exercise, question
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.7)
    offer = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownQuestion(f"no question is called {name!r}{offer}")


def names() -> list[str]:
    """Names of all questions, for the Tab key."""
    return [question.name for _, question in _all()]


def _all() -> Iterator[tuple[Exercise, Question]]:
    return ((exercise, question) for exercise in all_exercises() for question in questions_of(exercise))


@functools.lru_cache(maxsize=64)
def _loaded(name: str, path: Path, changed: int) -> tuple[Question, ...]:
    """Run a file of questions. Cached until it changes: `%question` looks for a name in all files."""
    module = ModuleType(f"questions of {name}")
    module.__file__ = str(path)
    exec(compile(read_text(path), str(path), "exec"), module.__dict__)
    return tuple(module.QUESTIONS)
