"""The benchmark of starting ranks runs and prints what it compared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "benchmarks" / "launch.py"


@pytest.mark.slow
def test_prints_both_times_and_their_ratio() -> None:
    command = [sys.executable, str(LAUNCH), "--ranks", "2", "--repetitions", "1"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.search(r"every rank's first line │ +\d+\.\d+ │ +\d+\.\d+ │ +\d+x", output), output


def test_bad_options_are_named() -> None:
    ended = subprocess.run([sys.executable, str(LAUNCH), "--ranks", "0"], capture_output=True, text=True)
    assert ended.returncode == 2 and "must be at least 1, got 0" in ended.stderr
