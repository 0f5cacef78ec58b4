"""Grading an assignment: judge what has no verdict yet, side by side; write down one learner after the other.

Each verdict is kept the moment it is there, and the gradebook has one writer, this process. So a run can end at any
point, in any way: the next one goes on where it stood.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import nbformat

from autograder.batch.gradebook import one_engine
from autograder.batch.launch import Nursery
from autograder.batch.lock import grading_alone
from autograder.batch.pool import Outcome, Pool
from autograder.course import Course, CourseFailed, Mark
from autograder.desk.store import Verdicts, Work
from autograder.grading import is_judged, rubric_of
from autograder.marks.late import EXTENSIONS, read_extensions
from autograder.measurable import unmeasurable
from autograder.sandbox import Sandbox
from autograder.verdict import Verdict
from labkit.checks import Rubric

GRADED = "graded"
UNCHANGED = "unchanged"
WAITING = "waiting"
ERROR = "error"


@dataclass(frozen=True)
class Line:
    """How grading one notebook of one learner went."""

    work: Work
    state: str
    """`graded` now; `unchanged` since it was graded earlier; `waiting` for the next run, since it was never graded or
    has changed; or `error`: an error of the infrastructure, no mark."""
    earned: float | None = None
    points: float | None = None
    by_hand: float | None = None
    """What an instructor has set in its place."""
    look_again: bool = False
    """Was it judged anew after that?"""
    seconds: float = 0.0
    """What judging took, in this run or earlier."""
    judged: bool = False
    """Was it judged in this run?"""
    why: str = ""
    """Why it has no points, in a few words."""
    reason: str = ""
    """Of an error."""
    left_out: str = ""
    """What this machine could not judge, and why."""


OnLine = Callable[[Line], None]


def default_workers() -> int:
    """One for each core that this process may use."""
    return len(os.sched_getaffinity(0))


def grade(
    course: Course,
    assignment: str,
    students: Sequence[str] = (),
    *,
    workers: int | None = None,
    again: bool = False,
    only_errors: bool = False,
    on_start: Callable[[Sequence[Work]], None] = lambda todo: None,
    on_line: OnLine = lambda line: None,
    nursery: Nursery | None = None,
) -> list[Line]:
    """Grade what `students` handed in for `assignment`; all learners when none is named.

    workers: processes that judge; one for each core when None. again: judge anew also what has a verdict that counts.
    only_errors: only what ended in an error last time. on_start: told which notebooks there are; on_line: told how
    each went. nursery: one that has been started already.
    Raises `Locked`, `SandboxUnavailable`, `CannotJudge`, `BrokenExtensions`, `BrokenRubric`, `NoRubric`, `PoolFailed`,
    `CourseFailed`, and OSError when the disk is full.
    """
    with grading_alone(course.folder), one_engine():
        sandbox = Sandbox(config=course.config)
        sandbox.check()
        read_extensions(course.folder / EXTENSIONS)  # else each learner would end in the same error
        verdicts = Verdicts(course.folder)
        todo = wanted(course, assignment, students)
        if only_errors:
            todo = [work for work in todo if verdicts.failure(work)]
        rubrics = _rubrics(course, assignment, {work.notebook for work in todo})
        on_start(todo)
        if not todo:
            return []
        count = min(workers or default_workers(), len(todo))
        needs = any(check.needs for rubric in rubrics for check in rubric.checks)
        reasons = unmeasurable(sandbox) if needs else None
        with Pool(course.folder, course.options, count, nursery, reasons) as pool:
            writer = _Writer(course, assignment, verdicts, todo)
            lines = []
            for outcome in pool.run(todo, again):
                for line in writer.take(outcome):
                    on_line(line)
                    lines.append(line)
            return sorted(with_hand_marks(course, assignment, lines), key=lambda line: line.work)


def _rubrics(course: Course, assignment: str, notebooks: Iterable[str]) -> list[Rubric]:
    """All that are used. One that cannot be is reported once, before anybody is judged."""
    cells = (cell for notebook in sorted(notebooks) for cell in course.released(assignment, notebook).cells)
    return [rubric_of(cell) for cell in cells if is_judged(cell)]


def with_hand_marks(course: Course, assignment: str, lines: Iterable[Line]) -> list[Line]:
    """With what instructors have set in place of the judge's marks, as it stands in the gradebook."""
    of: dict[tuple[str, str], list[Mark]] = {}
    for mark in course.marks(assignment):
        if mark.judged:
            of.setdefault((mark.student, mark.notebook), []).append(mark)
    found = []
    for line in lines:
        theirs = of.get((line.work.student, line.work.notebook), [])
        if line.earned is not None and any(mark.by_hand for mark in theirs):
            total, again = sum(mark.score for mark in theirs), any(mark.look_again for mark in theirs)
            line = replace(line, by_hand=total, look_again=again)
        found.append(line)
    return found


def wanted(course: Course, assignment: str, students: Iterable[str]) -> list[Work]:
    """The notebooks that are to be graded. Raises `CourseFailed` when there is nothing of the kind."""
    notebooks = course.notebooks(assignment)
    if not notebooks:
        raise CourseFailed(_not_released(course, assignment))
    found = course.students(assignment)
    unknown = sorted(set(students) - set(found))
    if unknown:
        raise CourseFailed(f"{', '.join(unknown)}: nothing was handed in for {assignment}")
    return [Work(student, assignment, name) for student in students or found for name in notebooks]


def _not_released(course: Course, assignment: str) -> str:
    known = course.sources()
    if assignment not in known:
        like = difflib.get_close_matches(assignment, known, 1)
        meant = f"did you mean {like[0]}?" if like else f"there are: {', '.join(known) or 'none'}"
        return f"there is no assignment {assignment!r}; {meant}"
    command = f"nbgrader generate_assignment {assignment} --course-dir={shlex.quote(str(course.folder))}"
    return f"{assignment} is not released; `{command}` does it, in the lab's folder autograder/"


class _Writer:
    """Keeps verdicts as they come; a learner's marks go to the gradebook once all their notebooks are judged."""

    def __init__(self, course: Course, assignment: str, verdicts: Verdicts, todo: Iterable[Work]) -> None:
        self._course = course
        self._assignment = assignment
        self._verdicts = verdicts
        self._marked = {(mark.student, mark.notebook) for mark in course.marks(assignment)}
        self._waiting: dict[str, set[Work]] = {}
        for work in todo:
            self._waiting.setdefault(work.student, set()).add(work)
        self._outcomes: dict[str, list[Outcome]] = {}

    def take(self, outcome: Outcome) -> Iterator[Line]:
        """Write down what can be; the lines that are settled by it."""
        work = outcome.work
        if outcome.kept is None:
            failure = self._verdicts.fail(work, outcome.error, outcome.attempts)
            yield Line(work, ERROR, reason=failure.reason)
        else:
            if outcome.fresh:
                self._verdicts.keep(work, outcome.kept)
            self._outcomes.setdefault(work.student, []).append(outcome)
        self._waiting[work.student].discard(work)
        if not self._waiting[work.student]:
            yield from self._write(work.student, self._outcomes.pop(work.student, []))

    def _write(self, student: str, outcomes: list[Outcome]) -> Iterator[Line]:
        reason = ""
        new = [outcome for outcome in outcomes if not self._is_written(outcome)]
        if new:
            try:
                self._course.record(self._assignment, student, [outcome.work.notebook for outcome in outcomes])
            except CourseFailed as problem:
                reason = f"nbgrader could not write it down: {_gist(str(problem))}\n{problem}"
        for outcome in outcomes:
            if reason:
                self._verdicts.fail(outcome.work, reason, outcome.attempts)
                yield Line(outcome.work, ERROR, reason=reason)
                continue
            self._verdicts.clear(outcome.work)
            if outcome not in new:
                self._course.penalise(self._assignment, student, outcome.work.notebook)
            yield _line(outcome, GRADED if outcome in new else UNCHANGED)

    def _is_written(self, outcome: Outcome) -> bool:
        """Is this very verdict in the gradebook, for what was handed in at that time?"""
        assert outcome.kept is not None
        work = outcome.work
        if outcome.fresh or (work.student, work.notebook) not in self._marked:
            return False
        graded = self._course.folder / "autograded" / work.student / work.assignment
        try:
            written = nbformat.read(graded / f"{work.notebook}.ipynb", as_version=4)
            handed_in = (graded / "timestamp.txt").read_text()
        except (OSError, ValueError):
            return False
        key = written.metadata.get("labkit", {}).get("verdict")
        return bool(key == outcome.kept.key) and handed_in == outcome.handed_in


def _line(outcome: Outcome, state: str) -> Line:
    assert outcome.kept is not None
    reports = outcome.kept.verdict.reports.values()
    earned, points = sum(report.marks for report in reports), sum(report.all_points for report in reports)
    return Line(
        outcome.work,
        state,
        earned,
        points,
        seconds=outcome.kept.seconds,
        judged=outcome.fresh,
        why="" if earned else why_nothing(outcome.kept.verdict),
        left_out=left_out_of(outcome.kept.verdict),
    )


def left_out_of(verdict: Verdict) -> str:
    """What could not be judged, and why."""
    return "; ".join(report.left_out for report in verdict.reports.values() if report.left_out)


def why_nothing(verdict: Verdict) -> str:
    """What the first check that failed has met; what intake noted where nothing was judged."""
    met = [result.stopped or result.seen for report in verdict.reports.values() for result in report.results]
    first = next((text for text in met if text), verdict.notes[-1] if verdict.notes else "")
    return first.splitlines()[0][:80] if first else ""


def _gist(log: str) -> str:
    """The line of a log that names the error: the end of its traceback."""
    named = [line for line in log.splitlines() if re.match(r"[\w.]*(Error|Exception|Failed|Extensions)\b", line)]
    return named[-1] if named else ""
