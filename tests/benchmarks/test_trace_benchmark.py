"""The recording benchmark runs and prints each figure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TRACE = Path(__file__).parents[2] / "benchmarks" / "trace.py"


def test_prints_all_of_its_figures() -> None:
    output = subprocess.run([sys.executable, str(TRACE), "--quick"], check=True, capture_output=True, text=True).stdout
    assert len(re.findall(r"[+-]\d+\.\d %", output)) == 6
    assert re.search(r"[\d,]+ events of 2 ranks: the cell ends \d+\.\d\d s after its last line, without", output)
