"""Cells that are interrupted at random moments leave nothing behind; `benchmarks/soak.py` does it 500 times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_ten_interrupted_cells_leave_nothing(tmp_path: Path) -> None:
    # others may use the machine's own folder meanwhile
    ended = subprocess.run(
        [sys.executable, str(SOAK), "--cells", "10"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0 and "Left: nothing" in ended.stdout, ended.stdout + ended.stderr
