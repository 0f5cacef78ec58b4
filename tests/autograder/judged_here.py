"""Tests of rubrics on machines that cannot measure all that some checks need."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autograder.measurable import left_out
from autograder.sandbox import Sandbox
from labkit.checks import Rubric


def skip_unless_judged(rubric: Rubric, sandbox: Sandbox, checks: Sequence[str]) -> None:
    """Skip the test, with the reason, if this machine can judge none of these checks; without names: all are judged."""
    unjudged = left_out(rubric, sandbox)
    if checks and all(check in unjudged for check in checks):
        pytest.skip("; ".join(sorted({unjudged[check] for check in checks})))
