"""Examinations of `labkit doctor` for instructors."""

from __future__ import annotations

from importlib import metadata

from autograder.sandbox import Sandbox, SandboxUnavailable
from labkit.command_line.finding import Finding, State


def sandbox() -> Finding:
    """Check for a sandbox to grade in, and name its mechanism."""
    try:
        means = Sandbox().means()
    except SandboxUnavailable as error:
        return Finding(State.MISSING, str(error), "not needed to learn; instructors need it to grade")
    return Finding(State.OK, means)


def nbgrader() -> Finding:
    return Finding(State.OK, metadata.version("nbgrader"))
