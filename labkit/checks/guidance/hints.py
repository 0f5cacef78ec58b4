"""Hints for one TODO, one at a time: `labkit hint NAME [TODO]` at the shell, `%hint` in a notebook.

Without a number the TODO is the first one that is not written yet or whose check failed last. The number of hints taken
for each TODO is stored in the workspace, so that a new session continues there.
"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from labkit.catalogue import Exercise, MissingModule, UnknownExercise, find, workspace
from labkit.checks.guidance.todos import unwritten
from labkit.checks.rubric import NoRubric, visible_rubric
from labkit.progress import recorded

_WIDTH = 100


class NoHint(ValueError):
    """There is no hint to show; the message says why, and what to type."""


@dataclass(frozen=True)
class Hint:
    """One hint for one TODO."""

    todo: int
    number: int
    """Number of the hint within its TODO, from 1."""
    total: int
    """Number of hints for its TODO."""
    body: str
    """Text in Markdown."""
    why: str = ""
    """Reason why this TODO was chosen; empty if the learner chose it."""

    @property
    def head(self) -> str:
        return f"TODO {self.todo}, hint {self.number} of {self.total}"

    def text(self) -> str:
        """Return the hint as text for a terminal."""
        head = self.head + f" ({self.why})" * bool(self.why)
        return "\n".join([head, *textwrap.wrap(self.body, _WIDTH, break_long_words=False, break_on_hyphens=False)])

    def markdown(self) -> str:
        """Return the hint as Markdown for a notebook."""
        return f"**{self.head}**" + f" · {self.why}" * bool(self.why) + f"\n\n{self.body}"


def next_hint(exercise: Exercise, todo: int | None = None) -> Hint:
    """Take the next hint for a TODO; after the last one, that one again.

    todo: None chooses the TODO by the module and by its last checks. Raises `NoRubric` or `NoHint`.
    """
    hints = visible_rubric(exercise).hints
    if todo is None:
        todo, why = _todo_to_look_at(exercise)
    else:
        why = ""
    if not hints.get(todo):
        known = ", ".join(map(str, sorted(hints))) or "none"
        raise NoHint(f"{exercise.short_name} has no hints for TODO {todo}; its TODOs with hints: {known}")
    taken = _taken(exercise)
    taken[todo] = min(taken.get(todo, 0) + 1, len(hints[todo]))
    _path(exercise).parent.mkdir(parents=True, exist_ok=True)
    _path(exercise).write_text(json.dumps(taken))
    return Hint(todo, taken[todo], len(hints[todo]), hints[todo][taken[todo] - 1], why)


def earlier_hints(exercise: Exercise, todo: int | None = None) -> list[Hint]:
    """Return all hints taken, or those for one TODO, in order. Raises `NoRubric`; `NoHint` if none was taken."""
    hints, taken = visible_rubric(exercise).hints, _taken(exercise)
    earlier = [
        Hint(number, place, len(bodies), body)
        for number, bodies in sorted(hints.items())
        for place, body in enumerate(bodies[: taken.get(number, 0)], 1)
        if todo in (None, number)
    ]
    if not earlier:
        raise NoHint(f"you have taken no hints for {f'TODO {todo} of ' if todo else ''}{exercise.short_name} yet")
    return earlier


def forget(exercise: Exercise) -> None:
    """Start again with the first hint of each TODO."""
    _path(exercise).unlink(missing_ok=True)


def main(name: str, todo: int | None = None, earlier: bool = False) -> int:
    """Print the next hint, or all `earlier` ones; return 2, with the reason on stderr, when there is none."""
    try:
        exercise = find(name)
        shown = earlier_hints(exercise, todo) if earlier else [next_hint(exercise, todo)]
    except (UnknownExercise, MissingModule, NoRubric, NoHint) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n\n".join(hint.text() for hint in shown))
    return 0


def _todo_to_look_at(exercise: Exercise) -> tuple[int, str]:
    """Return the number of the TODO to work on next, and why it is that one."""
    source, _ = exercise.source()
    checked = recorded(exercise).checked
    reasons: dict[int, str] = {}
    for gap in unwritten(exercise, source):
        reasons.setdefault(gap.number, f"`{gap.function}` is not written yet" if gap.function else "not written yet")
    for check in checked.failed if checked else ():
        reasons.setdefault(check.todo, f"the check “{check.title}” failed")
    reasons.pop(0, None)
    if reasons:
        return min(reasons.items())
    numbers = f"TODO {min(visible_rubric(exercise).hints, default=1)}"
    if checked is None:
        raise NoHint(f"every TODO of {exercise.short_name} is written: run its checks first, or name one, {numbers}")
    raise NoHint(f"{exercise.short_name} passes its checks: for a hint name a TODO, such as {numbers}")


def _taken(exercise: Exercise) -> dict[int, int]:
    """Return the number of hints taken, by TODO."""
    try:
        stored = json.loads(_path(exercise).read_text())
        return {int(todo): int(count) for todo, count in stored.items()}
    except (OSError, ValueError, AttributeError):  # none yet, or a file that the learner has edited
        return {}


def _path(exercise: Exercise) -> Path:
    return workspace() / ".hints" / f"{exercise.name}.json"
