"""Hints, one at a time: `labkit hint NAME` on the command line, `%hint NAME` in a notebook.

The number of hints taken is stored in the workspace, so that a new session continues there.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.catalogue import Exercise, UnknownExercise, find, workspace
from labkit.checks.rubric import NoRubric, visible_rubric


@dataclass(frozen=True)
class Hints:
    """The hints that a learner has taken, the newest last."""

    given: Sequence[str]
    total: int

    def text(self) -> str:
        """For a terminal."""
        if not self.given:
            return "there are no hints for this exercise"
        parts = [
            f"hint {number} of {self.total}\n{textwrap.fill(hint, 100)}" for number, hint in enumerate(self.given, 1)
        ]
        if len(self.given) == self.total:
            parts.append("that was the last hint")
        return "\n\n".join(parts)


def next_hint(exercise: Exercise) -> Hints:
    """Take one more hint, if there is one, and return all hints taken. Raises `NoRubric`."""
    hints = visible_rubric(exercise).hints
    counter = _counter(exercise)
    taken = int(counter.read_text()) if counter.is_file() else 0
    taken = min(taken + 1, len(hints))
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text(f"{taken}\n")
    return Hints(hints[:taken], len(hints))


def forget(exercise: Exercise) -> None:
    """Start again with the first hint."""
    _counter(exercise).unlink(missing_ok=True)


def main(name: str) -> int:
    """Print all hints taken and the next one; return 2 when there is no such exercise."""
    try:
        print(next_hint(find(name)).text())
    except (UnknownExercise, NoRubric) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _counter(exercise: Exercise) -> Path:
    return workspace() / ".hints" / exercise.name
