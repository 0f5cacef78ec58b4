"""The grading benchmark runs and prints what it compared."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.sandbox import Sandbox

AUTOGRADE = Path(__file__).parents[2] / "benchmarks" / "autograde.py"


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_prints_ours_beside_stock_nbgrader() -> None:
    command = [sys.executable, str(AUTOGRADE), "import", "--submissions", "1", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if "│" in line]
    stock, ours = [row for row in rows if row[2]]
    for row in stock, ours:
        assert float(row[3]) > 0 and int(row[5]) > 50 and re.fullmatch(r"\d+%", row[6])
    assert re.fullmatch(r"[\d.]+x", ours[4])


def test_unknown_parts_are_named(refusal: Callable[..., str]) -> None:
    assert "'rings' is none of" in refusal("autograde.py", "rings")
