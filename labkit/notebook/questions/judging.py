"""Judge an answer with the variables of the learner's notebook, and save it."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from labkit.catalogue import Exercise
from labkit.questions import Attempt, Question, attempt_at, save
from labkit.questions.answers import TRIES_BEFORE_REVEAL
from labkit.questions.kinds import Reply, Verdict

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def judge(shell: InteractiveShell, exercise: Exercise, question: Question, given: str) -> Attempt:
    """Judge and save an answer. What the learner's code prints meanwhile is dropped."""
    with contextlib.redirect_stdout(io.StringIO()):
        reply = question.judge(given, shell.user_ns)
    return _saved(exercise, question, given, reply)


def reveal(shell: InteractiveShell, exercise: Exercise, question: Question) -> Attempt:
    """Return the answer, if the learner has tried often enough."""
    before = attempt_at(exercise, question)
    if not before.may_reveal and not before.seen:
        remaining = TRIES_BEFORE_REVEAL - before.tries
        text = f"Try {remaining} more time{'s' * (remaining > 1)} first." if remaining > 0 else before.text
        return _saved(exercise, question, before.given, Reply(Verdict.UNREAD, text))
    with contextlib.redirect_stdout(io.StringIO()):
        reply = question.reveal(shell.user_ns)
    return _saved(exercise, question, before.given, reply)


def _saved(exercise: Exercise, question: Question, given: str, reply: Reply) -> Attempt:
    try:
        return save(exercise, question, given, reply)
    except OSError as error:
        before = attempt_at(exercise, question)
        return Attempt(given, reply.verdict, f"{reply.text} (Not saved: {error}.)", before.tries + 1, before.seen)
