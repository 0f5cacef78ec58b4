"""One grader for a course at a time: two would write to one gradebook."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path


class Locked(RuntimeError):
    """Somebody else grades this course; the message says who and since when."""


@contextmanager
def grading_alone(course: Path) -> Iterator[None]:
    """Hold the course's lock. It goes with the process, however that ends. Raises `Locked`."""
    course.mkdir(parents=True, exist_ok=True)
    path = course / ".autograde.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise Locked(f"this course is being graded already, by {who}. Wait for it, or stop it. ({path})") from None
        os.ftruncate(handle, 0)
        began = datetime.now().astimezone().isoformat(" ", "seconds")
        os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename} since {began}".encode(), 0)
        yield
    finally:
        os.close(handle)
