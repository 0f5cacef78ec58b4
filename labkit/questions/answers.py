"""A learner's answers, saved in the workspace so that they outlive the kernel: `.answers/PHASE/NAME.json`.

The number of tries, and whether the answer is right, are saved with the learner's progress.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.catalogue import Exercise, workspace
from labkit.linux.files import replace_text
from labkit.progress import answers, record_answer
from labkit.progress.store import locked
from labkit.questions.arithmetic import NotANumber, number
from labkit.questions.definitions import find
from labkit.questions.kinds import Choice, Number, Question, Reply, Verdict

TRIES_BEFORE_REVEAL = 3
"""Wrong tries after which the answer is offered."""


@dataclass(frozen=True)
class Attempt:
    """The last attempt at a question."""

    given: str = ""
    """Input as it was typed."""
    verdict: Verdict | None = None
    """Verdict; None before the first attempt."""
    text: str = ""
    """Reply in Markdown."""
    tries: int = 0
    seen: bool = False
    """Whether the learner asked for the answer."""

    @property
    def may_reveal(self) -> bool:
        return self.tries >= TRIES_BEFORE_REVEAL and not self.seen and self.verdict is not Verdict.RIGHT


def attempt_at(exercise: Exercise, question: Question) -> Attempt:
    """Return the last attempt that was saved."""
    fields = _read(_path(exercise)).get(question.name)
    if not isinstance(fields, dict):
        return Attempt()
    try:
        verdict, tries = Verdict(fields["verdict"]), _tries(exercise, question)
        return Attempt(str(fields["given"]), verdict, str(fields["text"]), tries, bool(fields["seen"]))
    except (KeyError, ValueError):  # saved by another version
        return Attempt()


def save(exercise: Exercise, question: Question, given: str, reply: Reply) -> Attempt:
    """Save an attempt and return it; a typing error leaves what was saved. Raises OSError."""
    before = attempt_at(exercise, question)
    if reply.verdict in (Verdict.UNREAD, Verdict.UNREADY):
        return Attempt(given, reply.verdict, reply.text, before.tries, before.seen)
    seen = before.seen or reply.verdict is Verdict.SEEN
    tries = before.tries + (reply.verdict is not Verdict.SEEN)
    predicts = isinstance(question, Number) and bool(question.shown_by)  # counts when it is made
    record_answer(exercise, question.name, tries, right=predicts or (reply.verdict is Verdict.RIGHT and not seen))
    path = _path(exercise)
    with locked(path.with_suffix(".lock")):
        data = _read(path)
        data[question.name] = {"given": given, "verdict": reply.verdict.value, "text": reply.text, "seen": seen}
        replace_text(path, json.dumps(data, indent=2) + "\n")
    return Attempt(given, reply.verdict, reply.text, tries, seen)


def answered(name: str) -> float | str | None:
    """Return the learner's last answer: a number, the text of a choice, a line of code; None before the first one.

    For a picture: `plots.curves(..., mark=answered("busiest"))`. Raises `UnknownQuestion`.
    """
    exercise, question = find(name)
    given = attempt_at(exercise, question).given
    if not given:
        return None
    if isinstance(question, Number):
        try:
            return number(given, unit=question.unit)
        except NotANumber:  # it used names of the notebook
            return None
    return question.option(given) if isinstance(question, Choice) else given


def _tries(exercise: Exercise, question: Question) -> int:
    answer = answers(exercise).get(question.name)
    return answer.tries if answer else 0


def _path(exercise: Exercise) -> Path:
    return workspace() / ".answers" / f"{exercise.name}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
