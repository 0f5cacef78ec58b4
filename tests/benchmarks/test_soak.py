"""Cells that are interrupted at random moments leave nothing behind; `benchmarks/soak.py` does it 500 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_ten_interrupted_cells_leave_nothing() -> None:
    ended = subprocess.run([sys.executable, str(SOAK), "--cells", "10"], capture_output=True, text=True)
    assert ended.returncode == 0 and "Left: nothing" in ended.stdout, ended.stdout + ended.stderr
