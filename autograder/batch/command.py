"""`labkit autograde` and `labkit grades`, as typed at a shell."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from autograder.batch.launch import Nursery
from autograder.batch.lock import Locked
from autograder.batch.pool import PoolFailed
from autograder.batch.run import ERROR, Line, grade
from autograder.batch.settings import BadSetting, read_settings
from autograder.batch.show import Show, as_json
from autograder.batch.status import status_of
from autograder.batch.terminal import harmless
from autograder.course import Course, CourseFailed
from autograder.judge import BrokenRubric
from autograder.marks.export import FORMATS
from autograder.marks.late import BrokenExtensions
from autograder.sandbox import SandboxUnavailable
from labkit import exercises
from labkit.checks import CannotJudge, NoRubric

_REFUSED = (
    BadSetting,
    BrokenExtensions,
    BrokenRubric,
    CannotJudge,
    CourseFailed,
    KeyboardInterrupt,
    Locked,
    NoRubric,
    OSError,
    PoolFailed,
    SandboxUnavailable,
)


def main(
    assignment: str,
    students: Sequence[str],
    *,
    course: Path | None,
    workers: int | None,
    again: bool,
    only_errors: bool,
    status: bool,
    json: bool,
    settings: Sequence[str] = (),
    nursery: Nursery | None = None,
) -> int:
    """Grade an assignment, or show how it stands. `settings`: on top of nbgrader_config.py, `--JudgeCells.timeout=40`.

    Returns 0 when all have their marks, 1 when some have none, 2 when nothing could be done, 130 after Ctrl-C.
    """
    show = Show(Console(stderr=json, highlight=False))
    try:
        opened = Course(_folder(course), read_settings(settings))
        if status:
            lines = status_of(opened, assignment, students)
        else:
            with _stopping_for_sure(show.stopping) as stopped, show:

                def on_line(line: Line) -> None:
                    show.line(line)
                    if stopped():
                        raise KeyboardInterrupt

                lines = grade(
                    opened,
                    assignment,
                    students,
                    workers=workers,
                    again=again,
                    only_errors=only_errors,
                    on_start=show.start,
                    on_line=on_line,
                    nursery=nursery,
                )
    except _REFUSED as problem:
        done = f"{show.done} graded; run the same command again to go on."
        return _reason(problem, "Nothing was graded." if isinstance(problem, BrokenRubric | NoRubric) else done)
    for name in opened.nobody(assignment):
        print(f"labkit: not graded, no learner has such a name: {harmless(name)}", file=sys.stderr)
    if json:
        print(as_json(assignment, lines))
    else:
        show.end(assignment, lines, ran=not status)
    return 1 if any(line.state == ERROR for line in lines) else 0


def grades(assignments: Sequence[str], to: Path, kind: str, course: Path | None) -> int:
    """Write the grades to `to`; says who has none yet. `kind`: one of `FORMATS`."""
    try:
        opened = Course(_folder(course))
    except CourseFailed as problem:
        return _reason(problem, "")
    unknown = sorted(set(assignments) - set(opened.assignments()))
    if unknown:
        there = ", ".join(opened.assignments()) or "none"
        print(f"labkit: not released: {', '.join(unknown)}; there are: {there}", file=sys.stderr)
        return 2
    try:
        found = opened.export(to, assignments, FORMATS[kind])
    except OSError as problem:
        return _reason(problem, "Nothing was written.")
    without = [f"{harmless(grade.learner.id)} ({grade.assignment})" for grade in found if grade.score is None]
    print(f"{to}: {len(found)} grades")
    if without:
        print(f"no mark yet, left empty: {', '.join(without)}", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _stopping_for_sure(on_stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Was there a Ctrl-C? Python loses the exception when it meets a finaliser, of which SQLAlchemy has many."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        on_stop()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _reason(problem: BaseException, done: str) -> int:
    """Say why it ended, and how to go on; the exit code."""
    if isinstance(problem, KeyboardInterrupt):
        print(f"Stopped. {done}", file=sys.stderr)
        return 130
    more = isinstance(problem, OSError | BrokenRubric | NoRubric)
    text = f"{problem}. {done}" if more else str(problem)
    print(f"labkit: {text}", file=sys.stderr)
    return 2


def _folder(course: Path | None) -> Path:
    """The course's folder; one that was named must be there. Raises `CourseFailed`."""
    if course is not None and not course.is_dir():
        raise CourseFailed(
            f"there is no folder {harmless(str(course))}: name the one that holds release/ and submitted/"
        )
    return course or Path(os.environ.get("LABKIT_COURSE") or exercises.root() / "course")
