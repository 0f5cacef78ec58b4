"""The benchmark of the zoomable timeline runs and prints its frames."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from system_packages import needs_packages

VIEWER = Path(__file__).parents[2] / "benchmarks" / "viewer.py"


@pytest.mark.slow
def test_prints_milliseconds_of_each_movement() -> None:
    needs_packages("chromium")
    command = [sys.executable, str(VIEWER), "--ranks", "8", "--events", "500", "--frames", "10"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for movement in ("zoom", "pan", "point"):
        assert re.search(rf"{movement} +│ +\d+\.\d │ +\d+\.\d │ +\d+\.\d", output), output
