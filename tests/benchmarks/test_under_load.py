"""Correct solutions get full marks under load from other programs; `benchmarks/under_load.py` judges all of them."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.mutants.judging import rubrics
from autograder.sandbox import Sandbox

UNDER_LOAD = Path(__file__).parents[2] / "benchmarks" / "under_load.py"
CHECKS = "2"
"""Number of checks per exercise, so that it takes less than a minute."""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("drawn", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.skipif(not Sandbox().available, reason="needs bubblewrap")
def test_exercises_get_full_marks_beside_eight_busy_processes(drawn: int) -> None:
    names = secrets.SystemRandom().sample([rubric.exercise.short_name for rubric in rubrics()], drawn)
    command = [sys.executable, str(UNDER_LOAD), *names, "--repetitions", "1", "--solutions-only", "--checks", CHECKS]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0 and f"full marks in {drawn} of {drawn} runs" in ended.stdout, ended.stdout


def test_an_exercise_that_is_not_there_is_named(refusal: Callable[..., str]) -> None:
    assert "no exercise is called 'ring'; there are: process_group" in refusal("under_load.py", "ring")
