"""`labkit autograde`, as typed at a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from autograder.batch.lock import Locked
from autograder.batch.pool import PoolFailed
from autograder.batch.run import ERROR, grade
from autograder.batch.show import Show, as_json
from autograder.course import Course, CourseFailed
from autograder.sandbox import SandboxUnavailable
from labkit import exercises


def main(
    assignment: str,
    students: Sequence[str],
    *,
    course: Path | None,
    workers: int | None,
    again: bool,
    only_errors: bool,
    json: bool,
) -> int:
    """Grade an assignment; 0 when all have their marks, 1 when some have none, 2 when nothing could be done."""
    console = Console(stderr=json, highlight=False)
    folder = course or Path(os.environ.get("LABKIT_COURSE") or exercises.root() / "course")
    show = Show(console)
    try:
        with show:
            lines = grade(
                Course(folder),
                assignment,
                students,
                workers=workers,
                again=again,
                only_errors=only_errors,
                on_start=show.start,
                on_line=show.line,
            )
    except KeyboardInterrupt:
        print(f"Stopped. {show.done} graded; run the same command again to go on.", file=sys.stderr)
        return 130
    except (Locked, PoolFailed, CourseFailed, SandboxUnavailable) as problem:
        print(f"labkit: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(
            f"labkit: {problem}. {show.done} graded before that; run the same command again to go on.", file=sys.stderr
        )
        return 2
    if json:
        print(as_json(assignment, lines))
    else:
        show.end(assignment, lines)
    return 1 if any(line.state == ERROR for line in lines) else 0
