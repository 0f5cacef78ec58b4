"""A lock that allows one grader per course: two would write to one gradebook."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path


class CourseLocked(RuntimeError):
    """Another process is grading this course; the message says whose and since when."""


@contextmanager
def grading_alone(course: Path) -> Iterator[None]:
    """Hold the course's lock. It is released when the process ends, however that happens. Raises `CourseLocked`."""
    course.mkdir(parents=True, exist_ok=True)
    path = course / ".autograde.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise CourseLocked(
                f"this course is being graded already, by {who}. Wait for it, or stop it. ({path})"
            ) from None
        os.ftruncate(handle, 0)
        began = datetime.now().astimezone().isoformat(" ", "seconds")
        os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename} since {began}".encode(), 0)
        yield
    finally:
        os.close(handle)
