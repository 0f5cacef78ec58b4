"""A question on the page: where to answer, and the reply; drawn by static/question.js."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from labkit.catalogue import Exercise
from labkit.notebook.questions.judging import judge, reveal
from labkit.notebook.questions.markdown import as_html, inline
from labkit.questions import Attempt, Choice, Line, Number, Question, Verdict

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_STATIC = Path(__file__).parent.parent / "static"


class QuestionWidget(anywidget.AnyWidget):
    """An input, its button, and the reply to what was answered."""

    _esm = _STATIC / "question.js"
    _css = _STATIC / "question.css"
    about = traitlets.Dict().tag(sync=True)
    """The question: kind, name, label, unit, options, button."""
    attempt = traitlets.Dict().tag(sync=True)
    """The last attempt: its number, the input, the verdict, the reply as HTML, whether the answer is offered."""

    def __init__(self, shell: InteractiveShell, exercise: Exercise, question: Question, attempt: Attempt) -> None:
        self._shell, self._exercise, self._question = shell, exercise, question
        self._count = 0
        super().__init__(about=_about(question), attempt=self._shown(attempt))
        self.on_msg(self._hear)

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        match content:
            case {"kind": "check", "given": str() as given}:
                attempt = judge(self._shell, self._exercise, self._question, given)
            case {"kind": "reveal"}:
                attempt = reveal(self._shell, self._exercise, self._question)
            case _:
                return
        self.attempt = self._shown(attempt)

    def _shown(self, attempt: Attempt) -> dict[str, Any]:
        self._count += 1  # so that the page is notified of an attempt that equals the previous one
        return {
            "count": self._count,
            "given": attempt.given,
            "verdict": attempt.verdict.value if attempt.verdict else "",
            "html": as_html(attempt.text),
            "mayReveal": attempt.may_reveal and attempt.verdict is not Verdict.RIGHT,
        }


def _about(question: Question) -> dict[str, Any]:
    predicts = isinstance(question, Number) and bool(question.shown_by)
    about: dict[str, Any] = {
        "name": question.name,
        "kind": type(question).__name__.lower(),
        "label": "Your prediction" if predicts else "Your answer",
        "button": "Predict" if predicts else "Check",
        "unit": question.unit if isinstance(question, Number) else "",
        "options": [],
    }
    if isinstance(question, Choice):
        about["options"] = [{"given": option, "html": inline(option)} for option in question.options]
    if isinstance(question, Line):
        about["label"] = "Your line of code"
    return about
