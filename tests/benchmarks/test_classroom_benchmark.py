"""The classroom benchmark runs learners on a real hub, and prints their times and memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CLASSROOM = Path(__file__).parents[2] / "benchmarks" / "classroom.py"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_learners_log_in_and_run_cells() -> None:
    command = [sys.executable, str(CLASSROOM), "--learners", "2", "--at-once", "1"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "2 learners; cells that failed: 0" in output
    assert re.search(r"first line of %%torchrun -n 4, 1 at once +│ +1 │ +[\d.]+ │", output), output
    assert re.search(r"│ after cells[^│]*│ +2 │ +[1-9]\d+ │", output), output


def test_learners_are_a_number(refusal: Callable[..., str]) -> None:
    assert "must be at least 1, got 0" in refusal("classroom.py", "--learners", "0")
