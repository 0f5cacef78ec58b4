"""The commands `labkit autograde` and `labkit grades`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from autograder.batch.launch import WorkerForkServer
from autograder.batch.lock import CourseLocked
from autograder.batch.pool import PoolFailed
from autograder.batch.run import ERROR, NotebookSummary, grade
from autograder.batch.settings import BadSetting, read_settings
from autograder.batch.show import Show, as_json
from autograder.batch.status import status_of
from autograder.batch.terminal import harmless
from autograder.course_folder import Course, CourseFailed
from autograder.gradebook_lock import GradebookLocked, patience
from autograder.judge import BrokenRubric
from autograder.marks.export import FORMATS
from autograder.marks.late import BrokenExtensions
from autograder.sandbox import SandboxUnavailable
from labkit import catalogue
from labkit.checks import CannotJudge, NoRubric

_REFUSED = (
    BadSetting,
    BrokenExtensions,
    BrokenRubric,
    CannotJudge,
    CourseFailed,
    KeyboardInterrupt,
    CourseLocked,
    GradebookLocked,
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
    forkserver: WorkerForkServer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Grade an assignment, or show its status. `settings`: overrides of nbgrader_config.py, `--JudgeCells.timeout=40`.

    clock: in seconds, for the wait for a locked gradebook.
    Returns 0 when everything is graded, 1 when some marks are missing, 2 when nothing could be done, 130 after Ctrl-C.
    """
    show = Show(Console(stderr=json, highlight=False))
    try:
        with patience(clock, show.say):
            opened = Course(_folder(course), read_settings(settings))
            if status:
                lines = status_of(opened, assignment, students)
            else:
                with _stopping_for_sure(show.stopping) as stopped, show:

                    def on_line(line: NotebookSummary) -> None:
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
                        forkserver=forkserver,
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


def grades(
    assignments: Sequence[str],
    to: Path,
    kind: str,
    course: Path | None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Export the grades to `to` and report who has none yet. `kind`: one of `FORMATS`. clock: as for `main`."""
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
        with patience(clock):
            exported = opened.export(to, assignments, FORMATS[kind])
    except (OSError, GradebookLocked) as problem:
        return _reason(problem, "Nothing was written.")
    without = [f"{harmless(grade.learner.id)} ({grade.assignment})" for grade in exported if grade.score is None]
    print(f"{to}: {len(exported)} grades")
    if without:
        print(f"no mark yet, left empty: {', '.join(without)}", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _stopping_for_sure(on_stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed.

    Python loses the exception when it is raised in a finalizer, of which SQLAlchemy has many.
    """
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
    """Report why it ended and how to continue; return the exit code."""
    if isinstance(problem, KeyboardInterrupt):
        print(f"Stopped. {done}", file=sys.stderr)
        return 130
    more = isinstance(problem, OSError | BrokenRubric | NoRubric)
    text = f"{problem}. {done}" if more else str(problem)
    print(f"labkit: {text}", file=sys.stderr)
    return 2


def _folder(course: Path | None) -> Path:
    """Return the course's folder; an explicit one must exist. Raises `CourseFailed`."""
    if course is not None and not course.is_dir():
        raise CourseFailed(
            f"there is no folder {harmless(str(course))}: name the one that holds release/ and submitted/"
        )
    return course or Path(os.environ.get("LABKIT_COURSE") or catalogue.root() / "course")
