"""`%question NAME`: show a question to answer; `%question NAME ANSWER` answers it without the widget."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from IPython.display import display

from labkit.catalogue import Exercise
from labkit.notebook.magics import Magic
from labkit.questions import Attempt, Choice, Line, Question, attempt_at, find
from labkit.questions.answers import TRIES_BEFORE_REVEAL
from labkit.questions.definitions import names

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics() -> list[Magic]:
    """The magic."""
    question = Magic(
        "question",
        _question,
        """Show a question, and judge your answer. Questions carry no points.

        %question tree_rounds
        %question tree_rounds 2 * 4
        """,
        words=names,
    )
    question.option("name", metavar="NAME", help="of the question")
    question.option("answer", metavar="ANSWER", nargs="*", help="a number, arithmetic, the number of a choice, a line")
    question.option("--reveal", action="store_true", help=f"show the answer, after {TRIES_BEFORE_REVEAL} tries")
    return [question]


def _question(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    from labkit.notebook.questions.judging import judge, reveal

    exercise, question = find(options.name)
    if options.reveal:
        _show_reply(reveal(shell, exercise, question))
    elif options.answer:
        _show_reply(judge(shell, exercise, question, " ".join(options.answer)))
    else:
        _ask(shell, exercise, question)


def _show_reply(attempt: Attempt) -> None:
    display({"text/markdown": attempt.text, "text/plain": attempt.text}, raw=True)


def _ask(shell: InteractiveShell, exercise: Exercise, question: Question) -> None:
    """Show the question, and below it the widget for the answer, or without a kernel, how to answer."""
    from labkit.notebook.questions.widget import QuestionWidget

    display({"text/markdown": question.text, "text/plain": question.text}, raw=True)
    widget = QuestionWidget(shell, exercise, question, attempt_at(exercise, question))
    bundle = widget._repr_mimebundle_()
    assert isinstance(bundle, tuple)
    text = _how_to_answer(question)
    display({**bundle[0], "text/markdown": text, "text/plain": text}, raw=True, metadata=bundle[1])


def _how_to_answer(question: Question) -> str:
    """Markdown for a reader without a kernel. It does not depend on answers: runs are compared by it."""
    if isinstance(question, Choice):
        listed = "".join(f"{number}. {option}\n" for number, option in enumerate(question.options, 1))
        return f"{listed}\n*To answer, run this cell, or `%question {question.name} 1`, 2, ...*"
    placeholder = "LINE" if isinstance(question, Line) else "NUMBER"
    return f"*To answer, run this cell, or `%question {question.name} {placeholder}`.*"
