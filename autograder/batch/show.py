"""Instructor's view of a run: progress bar with the time left, errors, marks, next steps."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from autograder.batch.run import ERROR, GRADED, WAITING, NotebookSummary
from autograder.batch.terminal import harmless
from autograder.verdicts.store import GradingTask
from labkit.lab_failed import LAB_FAILED

_NAMED = 3
"""Maximum learners named when it takes longer than estimated."""


class _StatusColumn(ProgressColumn):
    """A column with the current result of `say`."""

    def __init__(self, say: Callable[[], str]) -> None:
        super().__init__()
        self._say = say

    def render(self, task: Task) -> Text:
        return Text(self._say())


class Show:
    """Progress of one run on `console`; without a terminal, one line for each notebook and no bar."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self.done = 0
        """Number of finished notebooks."""
        self._began = self._clock()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _StatusColumn(self.left),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("getting ready", total=None)
        self._waited_for: list[GradingTask] = []
        self._started = self._last = self._began

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def start(self, todo: Sequence[GradingTask]) -> None:
        """Start with these notebooks to grade."""
        self._waited_for = list(todo)
        self._started = self._last = self._clock()
        self._progress.update(self._task, description="grading", total=len(todo))

    def stopping(self) -> None:
        """Announce the stop: the current write is finished first."""
        self._progress.update(self._task, description="stopping")

    def say(self, text: str) -> None:
        """Show what the run is waiting for."""
        self._console.print(escape(harmless(text)), soft_wrap=True)

    def left(self) -> str:
        """Estimate the time left from the pace so far; when it is exceeded, name the learners still missing."""
        if not self.done or not self._waited_for:
            return ""
        rest = (self._last - self._started) / self.done * len(self._waited_for)
        seconds = rest - (self._clock() - self._last)
        if seconds > 0:
            return f"left: {timedelta(seconds=math.ceil(seconds))}"
        learners = dict.fromkeys(harmless(work.student, 30) for work in self._waited_for)
        return f"waiting for {', '.join(learners)}" if len(learners) <= _NAMED else "left: ?"

    def line(self, line: NotebookSummary) -> None:
        """Record one finished notebook."""
        self.done += 1
        self._last = self._clock()
        if line.work in self._waited_for:
            self._waited_for.remove(line.work)
        self._progress.advance(self._task)
        if line.state == ERROR:
            self._console.print(escape(f"{_who(line)}: {_first_line(line.reason)}"), style="yellow", soft_wrap=True)
        elif not self._console.is_terminal:
            self._console.print(escape(f"{_who(line)}: {_marks(line)}, {harmless(_state(line))}"), soft_wrap=True)

    def end(self, assignment: str, lines: Sequence[NotebookSummary], ran: bool = True) -> None:
        """Show the marks, the errors and the next steps. ran: whether a run has ended, rather than a status query."""
        console = self._console
        if not lines:
            name = escape(harmless(assignment))
            console.print(
                f"Nothing to grade: submitted/ of the course holds nothing for {name}. `nbgrader collect {name}` "
                "brings what learners have handed in.",
                soft_wrap=True,
            )
            return
        console.print(_table(assignment, lines))
        errors = [line for line in lines if line.state == ERROR]
        for reason in dict.fromkeys(line.reason for line in errors):
            who = ", ".join(_who(line) for line in errors if line.reason == reason)
            console.print(escape(f"{who}:\n{_paragraph(reason)}"), style="yellow", soft_wrap=True)
        if ran:
            wall = self._clock() - self._began
            console.print(f"{sum(line.judged for line in lines)} judged in {wall:.1f} s", highlight=False)
        for text in dict.fromkeys(line.left_out for line in lines if line.left_out):
            advice = "The other points count for them; docs/sandbox.md says what a machine needs."
            console.print(escape(f"{harmless(text)}. {advice}"), style="yellow", soft_wrap=True)
        name = escape(harmless(assignment))
        waiting = sum(line.state == WAITING for line in lines)
        if errors:
            console.print(
                f"{len(errors)} without a mark: the grader failed there, not the learner. Set it right, "
                f"then run the same command again; `labkit autograde {name} --retry` tries these alone.",
                soft_wrap=True,
            )
        elif waiting:
            console.print(f"{waiting} to be judged: `labkit autograde {name}`", highlight=False)
        elif any(line.state == GRADED for line in lines):
            # without --force nbgrader keeps existing pages, with their old marks
            console.print(f"Next: `nbgrader generate_feedback {name} --force`", highlight=False)


def _table(assignment: str, lines: Sequence[NotebookSummary]) -> Table:
    table = Table(title=f"{escape(harmless(assignment))}: {_count(lines)}", title_justify="left")
    for name in ("learner", "notebook"):
        table.add_column(name, overflow="fold")
    for name in ("marks", "of", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for line in lines:
        earned = line.earned if line.by_hand is None else line.by_hand
        marks = ("-", "-") if earned is None else (f"{earned:g}", f"{line.points:g}")
        seconds = f"{line.seconds:.1f}" if line.judged else ""
        names = (escape(harmless(line.work.student)), escape(harmless(line.work.notebook)))
        table.add_row(
            *names, *marks, seconds, escape(harmless(_state(line))), style="yellow" if line.state == ERROR else None
        )
    return table


def _state(line: NotebookSummary) -> str:
    """`graded`, with notes for the instructor."""
    notes = [f"{ERROR}: {LAB_FAILED}" if line.state == ERROR else line.state]
    if line.by_hand is not None:
        again = "; judged anew since then, look again" if line.look_again else ""
        notes.append(f"set by hand, the judge says {line.earned:g}{again}")
    elif line.why:
        notes[0] = f"{line.state}: {line.why}"
    return "; ".join([*notes, *filter(None, [line.time_problem])])


def as_json(assignment: str, lines: Sequence[NotebookSummary]) -> str:
    """Return the results as JSON."""
    return json.dumps({"assignment": assignment, "lines": [_plain(line) for line in lines]}, indent=1)


def _plain(line: NotebookSummary) -> dict[str, object]:
    plain = asdict(line)
    return {**plain.pop("work"), **plain}


def _count(lines: Sequence[NotebookSummary]) -> str:
    learners = len({line.work.student for line in lines})
    return f"{learners} learner{'s' * (learners != 1)}"


def _who(line: NotebookSummary) -> str:
    return f"{harmless(line.work.student)} {harmless(line.work.notebook)}"


def _marks(line: NotebookSummary) -> str:
    return f"{line.earned:g}/{line.points:g}"


def _first_line(text: str) -> str:
    return harmless(next(iter(text.strip().splitlines()), ""))


def _paragraph(text: str) -> str:
    return "\n".join(f"    {harmless(part)}" for part in text.strip().splitlines()[-20:])
