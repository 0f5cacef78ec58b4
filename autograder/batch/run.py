"""Grading an assignment: judge in parallel what has no verdict yet; record one learner after the other.

Each verdict is stored as soon as it arrives, and only this process writes the gradebook. So a run can end at any point,
in any way: the next run continues from there.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import nbformat

from autograder.batch.gradebook import one_engine
from autograder.batch.launch import WorkerForkServer
from autograder.batch.lock import grading_alone
from autograder.batch.pool import Outcome, Pool
from autograder.course_folder import Course, CourseFailed, Mark
from autograder.grading import is_judged, rubric_of
from autograder.marks.late import EXTENSIONS, read_extensions
from autograder.measurable import unmeasurable
from autograder.sandbox import Sandbox
from autograder.verdict import Verdict
from autograder.verdicts.store import GradingTask, VerdictStore
from labkit.checks import Rubric

GRADED = "graded"
UNCHANGED = "unchanged"
WAITING = "waiting"
ERROR = "error"
_LONGEST_WHY = 160
"""Maximum characters of the reason why a notebook has no points."""


@dataclass(frozen=True)
class NotebookSummary:
    """Result of grading one notebook of one learner."""

    work: GradingTask
    state: str
    """`graded` now; `unchanged` since it was graded earlier; `waiting` for the next run, since it was never graded or
    has changed; or `error`: an infrastructure error, no mark."""
    earned: float | None = None
    points: float | None = None
    by_hand: float | None = None
    """Marks that an instructor has set instead."""
    look_again: bool = False
    """Whether it was judged again after an instructor had set marks."""
    seconds: float = 0.0
    """Judging time in seconds, in this run or earlier."""
    judged: bool = False
    """Whether it was judged in this run."""
    why: str = ""
    """Why it has no points, in a few words."""
    reason: str = ""
    """Message of an error."""
    time_problem: str = ""
    """Why the submission's own time does not count; empty if it does, or if the time was recorded."""
    left_out: str = ""
    """Reason why this machine could not judge some checks; empty if it judged all."""


OnLine = Callable[[NotebookSummary], None]


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def grade(
    course: Course,
    assignment: str,
    students: Sequence[str] = (),
    *,
    workers: int | None = None,
    again: bool = False,
    only_errors: bool = False,
    on_start: Callable[[Sequence[GradingTask]], None] = lambda todo: None,
    on_line: OnLine = lambda line: None,
    forkserver: WorkerForkServer | None = None,
) -> list[NotebookSummary]:
    """Grade the submissions of `students` for `assignment`; all learners when empty.

    workers: judging processes; one for each core when None. again: also judge work with a valid verdict.
    only_errors: only work that ended in an error last time. on_start: called with the notebooks to grade; on_line:
    called with each result. forkserver: a forkserver that has been started already.
    Raises `CourseLocked`, `GradebookLocked`, `SandboxUnavailable`, `CannotJudge`, `BrokenExtensions`, `BrokenRubric`,
    `NoRubric`, `PoolFailed`, `CourseFailed`, and OSError when the disk is full.
    """
    with grading_alone(course.folder), one_engine():
        sandbox = Sandbox(config=course.config)
        sandbox.check()
        read_extensions(course.folder / EXTENSIONS)  # otherwise each learner would end in the same error
        verdicts = VerdictStore(course.folder)
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
        writer = _Writer(course, assignment, verdicts, todo)
        with (
            closing(forkserver or WorkerForkServer()) as server,
            Pool(course.folder, course.options, count, server, reasons) as pool,
        ):
            lines = []
            for outcome in pool.run(todo, again):
                for line in writer.take(outcome):
                    on_line(line)
                    lines.append(line)
            return sorted(with_hand_marks(course, assignment, lines), key=lambda line: line.work)


def _rubrics(course: Course, assignment: str, notebooks: Iterable[str]) -> list[Rubric]:
    """Return all rubrics in use. A broken one is reported once, before anything is judged."""
    cells = (cell for notebook in sorted(notebooks) for cell in course.released(assignment, notebook).cells)
    return [rubric_of(cell) for cell in cells if is_judged(cell)]


def with_hand_marks(course: Course, assignment: str, lines: Iterable[NotebookSummary]) -> list[NotebookSummary]:
    """Add the marks that instructors have set in place of the judge's, from the gradebook."""
    marks_of: dict[tuple[str, str], list[Mark]] = {}
    for mark in course.marks(assignment):
        if mark.judged:
            marks_of.setdefault((mark.student, mark.notebook), []).append(mark)
    completed = []
    for line in lines:
        theirs = marks_of.get((line.work.student, line.work.notebook), [])
        if line.earned is not None and any(mark.by_hand for mark in theirs):
            total, again = sum(mark.score for mark in theirs), any(mark.look_again for mark in theirs)
            line = replace(line, by_hand=total, look_again=again)
        completed.append(line)
    return completed


def wanted(course: Course, assignment: str, students: Iterable[str]) -> list[GradingTask]:
    """Return the notebooks to grade, those of the submission that arrived first at the beginning.

    Raises `CourseFailed` when there are none.
    """
    notebooks = course.notebooks(assignment)
    if not notebooks:
        raise CourseFailed(_not_released(course, assignment))
    submitters = course.students(assignment)
    unknown = sorted(set(students) - set(submitters))
    if unknown:
        raise CourseFailed(f"{', '.join(unknown)}: nothing was handed in for {assignment}")
    in_order = course.by_arrival(assignment, students or submitters)
    return [GradingTask(student, assignment, name) for student in in_order for name in notebooks]


def _not_released(course: Course, assignment: str) -> str:
    known = course.sources()
    if assignment not in known:
        like = difflib.get_close_matches(assignment, known, 1)
        meant = f"did you mean {like[0]}?" if like else f"there are: {', '.join(known) or 'none'}"
        return f"there is no assignment {assignment!r}; {meant}"
    command = f"nbgrader generate_assignment {assignment} --course-dir={shlex.quote(str(course.folder))}"
    return f"{assignment} is not released; `{command}` does it, in the lab's folder autograder/"


class _Writer:
    """Stores verdicts as they arrive; writes a learner's marks to the gradebook once all their notebooks are judged."""

    def __init__(self, course: Course, assignment: str, verdicts: VerdictStore, todo: Iterable[GradingTask]) -> None:
        self._course = course
        self._assignment = assignment
        self._verdicts = verdicts
        self._marked = {(mark.student, mark.notebook) for mark in course.marks(assignment)}
        self._waiting: dict[str, set[GradingTask]] = {}
        for work in todo:
            self._waiting.setdefault(work.student, set()).add(work)
        self._outcomes: dict[str, list[Outcome]] = {}

    def take(self, outcome: Outcome) -> Iterator[NotebookSummary]:
        """Record what can be recorded; yield the results that this settles."""
        work = outcome.work
        if outcome.stored is None:
            failure = self._verdicts.fail(work, outcome.error, outcome.attempts)
            yield NotebookSummary(work, ERROR, reason=failure.reason)
        else:
            if outcome.fresh:
                self._verdicts.keep(work, outcome.stored)
            self._outcomes.setdefault(work.student, []).append(outcome)
        self._waiting[work.student].discard(work)
        if not self._waiting[work.student]:
            yield from self._write(work.student, self._outcomes.pop(work.student, []))

    def _write(self, student: str, outcomes: list[Outcome]) -> Iterator[NotebookSummary]:
        reason = ""
        new = [outcome for outcome in outcomes if not self._is_written(outcome)]
        if new:
            try:
                self._course.record(self._assignment, student, [outcome.work.notebook for outcome in outcomes])
            except CourseFailed as problem:
                reason = f"nbgrader could not write it down: {_gist(str(problem))}\n{problem}"
        for outcome in outcomes:
            if reason:
                failure = self._verdicts.fail(outcome.work, reason, outcome.attempts)
                yield NotebookSummary(outcome.work, ERROR, reason=failure.reason)
                continue
            self._verdicts.clear(outcome.work)
            if outcome not in new:
                self._course.penalise(self._assignment, student, outcome.work.notebook)
            yield _line(outcome, GRADED if outcome in new else UNCHANGED)

    def _is_written(self, outcome: Outcome) -> bool:
        """Return whether the gradebook holds this very verdict, for the submission of that time."""
        assert outcome.stored is not None
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
        return bool(key == outcome.stored.key) and handed_in == outcome.handed_in


def _line(outcome: Outcome, state: str) -> NotebookSummary:
    assert outcome.stored is not None
    reports = outcome.stored.verdict.reports.values()
    earned, points = sum(report.marks for report in reports), sum(report.all_points for report in reports)
    return NotebookSummary(
        outcome.work,
        state,
        earned,
        points,
        seconds=outcome.stored.seconds,
        judged=outcome.fresh,
        why="" if earned else why_nothing(outcome.stored.verdict),
        time_problem=outcome.time_problem,
        left_out=left_out_of(outcome.stored.verdict),
    )


def left_out_of(verdict: Verdict) -> str:
    """Return what could not be judged, and why."""
    return "; ".join(report.left_out for report in verdict.reports.values() if report.left_out)


def why_nothing(verdict: Verdict) -> str:
    """Return the first failed check's observation; intake's notes where nothing was judged."""
    met = [result.stopped or result.seen for report in verdict.reports.values() for result in report.results]
    first = next((text for text in met if text), verdict.notes[-1] if verdict.notes else "")
    return first.splitlines()[0][:_LONGEST_WHY] if first else ""


def _gist(log: str) -> str:
    """Return the line of a log that names the error: the last line of its traceback."""
    named = [line for line in log.splitlines() if re.match(r"[\w.]*(Error|Exception|Failed|Extensions)\b", line)]
    return named[-1] if named else ""
