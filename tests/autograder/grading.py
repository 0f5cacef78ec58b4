"""`grade` as `labkit autograde` calls it: workers are forked from this process, and share its sandboxes' forkserver.

A process of their own would import torch and nbgrader, and another one torch again, for each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autograder.batch import run
from autograder.batch.launch import WorkerForkServer, begin
from autograder.batch.run import NotebookSummary
from autograder.course_folder import Course


def grade(course: Course, assignment: str, students: Sequence[str] = (), **options: Any) -> list[NotebookSummary]:
    """Grade the submissions of `students`, or all; see `run.grade`."""
    begin()
    forkserver = WorkerForkServer(forked=True)
    try:
        return run.grade(course, assignment, students, forkserver=forkserver, **options)
    finally:
        forkserver.close()
