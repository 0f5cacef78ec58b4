"""Kinds of questions, and how an attempt is judged: a number, a choice, a line of code.

The answer is what a run or a formula gives at that moment, so that it is true for the learner's own notebook. Texts are
Markdown: paragraphs, `code`, *emphasis*. `{answer}` in `why` is the answer, with a format if wanted: `{answer:,.0f}`.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from labkit.questions.arithmetic import NotANumber, number
from labkit.questions.supply import NotReady, supplied

Names = Mapping[str, Any]
"""Variables of the learner's notebook."""
_WITHOUT_TIMES = re.compile(r"\b\d+[A-Za-z]")
"""A number directly before a letter: 2N."""


class Verdict(Enum):
    """Result of an attempt."""

    RIGHT = "right"
    WRONG = "wrong"
    NOTED = "noted"
    """A prediction, which the notebook has yet to show."""
    SEEN = "seen"
    """The learner asked for the answer."""
    UNREAD = "unread"
    """A typing error instead of an answer. Does not count as a try."""
    UNREADY = "unready"
    """The answer cannot be found out yet: earlier cells have not run. Does not count as a try."""


@dataclass(frozen=True)
class Reply:
    """Reply to an attempt, in Markdown."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Question(ABC):
    """One question. `judge` never raises for what a learner types, and never gives the answer away."""

    name: str
    """Identifier, unique in the course."""
    text: str
    why: str
    """Explanation beside the right answer: how to find it, and what the run shows."""

    @abstractmethod
    def judge(self, given: str, names: Names) -> Reply:
        """Judge an attempt as it was typed."""

    @abstractmethod
    def reveal(self, names: Names) -> Reply:
        """Return the answer and why: for a learner who has tried and asks for it."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"the name of a question must be an identifier, got {self.name!r}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Number(Question):
    """A number, typed as one or as arithmetic: `2 * 16 * 4`.

    With `shown_by` it is a prediction: until the notebook has the variables that `answer` takes, an attempt is noted.
    """

    answer: Callable[..., float]
    """Function that returns the answer; its parameters are names of the notebook."""
    solution: str
    """Line that a learner could have typed."""
    unit: str = ""
    tolerance: float = 1e-9
    """Relative tolerance; absolute where the answer is 0."""
    near: Mapping[str, str] = field(default_factory=dict)
    """Wrong lines, each with an explanation of its mistake; a line may contain `answer`."""
    otherwise: str = ""
    """Hint after any other wrong number."""
    shown_by: str = ""
    """Part of the notebook that shows the answer of a prediction: "the picture below"."""

    def judge(self, given: str, names: Names) -> Reply:
        try:
            value = number(given, names, self.unit)
            answer = float(supplied(self.answer, names))
        except NotANumber as error:
            return Reply(Verdict.UNREAD, _sentence(str(error)))
        except NotReady as error:
            if self.shown_by and error.missing:
                return Reply(Verdict.NOTED, f"**Noted**: {self.shown(value)}. It appears in {self.shown_by}.")
            return Reply(Verdict.UNREADY, _sentence(str(error)))
        if self._equal(value, answer):
            return Reply(Verdict.RIGHT, f"**Right**: {self.shown(value)}. {self.why.format(answer=answer)}")
        word = next((word for line, word in self.near.items() if self._equal(value, self._near(line, answer))), "")
        return Reply(Verdict.WRONG, f"**Not yet**: {self.shown(value)}. {_capital(word or self.otherwise)}".rstrip())

    def reveal(self, names: Names) -> Reply:
        try:
            answer = float(supplied(self.answer, names))
        except NotReady as error:
            return Reply(Verdict.UNREADY, _sentence(str(error)))
        why = self.why.format(answer=answer)
        return Reply(Verdict.SEEN, f"The answer is {self.shown(answer)}, from `{self.solution}`. {why}")

    def shown(self, value: float) -> str:
        """Return a number for people, with the unit."""
        whole = abs(value - round(value)) <= 1e-9 * abs(value) < 1e6
        return f"{value:,.0f} {self.unit}".rstrip() if whole else f"{value:.4g} {self.unit}".rstrip()

    def _near(self, line: str, answer: float) -> float:
        return number(line, {"answer": answer})

    def _equal(self, value: float, answer: float) -> bool:
        return abs(value - answer) <= self.tolerance * (abs(answer) or 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice(Question):
    """One of several options."""

    options: Mapping[str, str]
    """Options, each with an explanation of its mistake; empty for the right one."""

    @property
    def right(self) -> str:
        return next(option for option, word in self.options.items() if not word)

    def judge(self, given: str, names: Names) -> Reply:
        """given: an option's text, or its number from 1."""
        option = self.option(given)
        if option is None:
            return Reply(Verdict.UNREAD, f"Choose one of 1 to {len(self.options)}.")
        if word := self.options[option]:
            return Reply(Verdict.WRONG, f"**Not yet**: {word}")
        return Reply(Verdict.RIGHT, f"**Right**: {option}. {self.why}")

    def reveal(self, names: Names) -> Reply:
        return Reply(Verdict.SEEN, f"The answer is: {self.right}. {self.why}")

    def option(self, given: str) -> str | None:
        """Return the option that was meant; None if there is no such option."""
        options, text = list(self.options), given.strip()
        if text.isdecimal() and 1 <= int(text) <= len(options):
            return options[int(text) - 1]
        return text if text in self.options else None

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.options.values()).count("") != 1:
            raise ValueError(f"{self.name} must have one right option, which has no word")


@dataclass(frozen=True, kw_only=True, eq=False)
class Line(Question):
    """An expression in Python, which must have the answer's value in each of some drawn cases."""

    answer: Callable[..., Any]
    """Function that returns the right value; its parameters are names of a case or of the notebook."""
    solution: str
    cases: Callable[[random.Random], Iterable[Names]]
    """Function that draws the cases: the values of the names in the line."""
    near: Mapping[str, str] = field(default_factory=dict)
    """Wrong lines, each with an explanation of its mistake, for all lines with the same values."""
    otherwise: str = ""

    def judge(self, given: str, names: Names) -> Reply:
        line = given.strip()
        try:
            code = compile(line, "<your line>", "eval")
        except (SyntaxError, ValueError) as error:
            problem = error.msg if isinstance(error, SyntaxError) else str(error)
            if _WITHOUT_TIMES.search(line):
                problem += "; write 2 * N for 2N"
            return Reply(Verdict.UNREAD, f"That is not an expression in Python: {problem}.")
        drawn = [dict(case) for case in self.cases(random.Random())]
        values = []
        for case in drawn:
            try:
                values.append(eval(code, {**names, **case}))
            except (Exception, SystemExit) as error:
                raised = f"{type(error).__name__}: {error}"
                return Reply(Verdict.UNREAD, f"With {_listed(case)} your line ends in `{raised}`.")
        try:
            wanted = [supplied(self.answer, {**names, **case}) for case in drawn]
        except NotReady as error:
            return Reply(Verdict.UNREADY, _sentence(str(error)))
        if all(map(_same, values, wanted)):
            return Reply(Verdict.RIGHT, f"**Right**: `{line}`. {self.why}")
        for wrong, word in self.near.items():
            if all(_same(value, eval(wrong, {**case})) for value, case in zip(values, drawn, strict=True)):
                return Reply(Verdict.WRONG, f"**Not yet**: {word}")
        at = next(at for at, value in enumerate(values) if not _same(value, wanted[at]))
        seen = f"with {_listed(drawn[at])} it gives {values[at]!r:.60}."
        return Reply(Verdict.WRONG, f"**Not yet**: {seen} {self.otherwise}".rstrip())

    def reveal(self, names: Names) -> Reply:
        return Reply(Verdict.SEEN, f"The answer is `{self.solution}`. {self.why}")


def _same(value: Any, wanted: Any) -> bool:
    try:
        return bool(abs(value - wanted) <= 1e-9 * max(1.0, abs(wanted)))
    except Exception:  # not numbers
        try:
            return bool(value == wanted)
        except Exception:  # a tensor of several elements, or a type that refuses
            return False


def _listed(case: Names) -> str:
    return ", ".join(f"{name} = {value}" for name, value in case.items())


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _sentence(text: str) -> str:
    return f"{_capital(text)}."
