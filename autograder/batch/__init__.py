"""Grading many submissions: side by side, resumable, nothing twice. `labkit autograde` is its command."""

from autograder.batch.lock import Locked
from autograder.batch.pool import PoolFailed
from autograder.batch.run import ERROR, GRADED, UNCHANGED, Line, grade

__all__ = ["ERROR", "GRADED", "UNCHANGED", "Line", "Locked", "PoolFailed", "grade"]
