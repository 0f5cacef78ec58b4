"""Cells interrupted at random moments leave nothing behind; `benchmarks/soak.py` does it 500 times."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_ten_interrupted_cells_leave_nothing() -> None:
    """Also while another program, this one, makes files in /dev/shm."""
    process = subprocess.Popen(
        [sys.executable, str(SOAK), "--cells", "10"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    others: list[shared_memory.SharedMemory] = []
    while process.poll() is None:
        others.append(shared_memory.SharedMemory(create=True, size=1000))
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    for memory in others:
        memory.close()
        memory.unlink()
    output = process.communicate()[0]
    assert process.returncode == 0 and "Left: nothing" in output, output
