"""The launch benchmark runs and prints what it compared."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "benchmarks" / "launch.py"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_prints_each_figure_beside_its_peer() -> None:
    options = ["start", "first", "memory", "tail", "--ranks", "2", "--repetitions", "1", "--starts", "2"]
    output = subprocess.run([sys.executable, str(LAUNCH), *options], check=True, capture_output=True, text=True).stdout
    pair = r"│ +\d+ \(\d+\) │ +\d+ \(\d+\) │ +[\d.]+x"
    assert re.search(rf"2 │ every rank's first line {pair}", output), output
    assert len(re.findall(rf"2 │ the same, after a pause +{pair}", output)) == 2, output
    assert re.search(rf"2 │ the job has ended +{pair}", output), output
    assert re.search(rf"│ +2 {pair}", output), output
    assert re.search(r"2 │ the ranks +│ +\d+ │ +\d+ │ 1/\d", output), output
    assert re.search(r"2 │ +\d+ │ +\d+ │ +\d+ │ +0 │", output), output


@pytest.mark.slow
@pytest.mark.exhaustive
def test_cells_on_live_ranks_beside_ipyparallel() -> None:
    pytest.importorskip("ipyparallel", reason="needs ipyparallel")
    options = ["cell", "--ranks", "2", "--repetitions", "1"]
    output = subprocess.run([sys.executable, str(LAUNCH), *options], check=True, capture_output=True, text=True).stdout
    assert re.search(r"2 │ +\d+ \(\d+\) │ +\d+ \(\d+\) │ +[\d.]+x", output), output


def test_bad_options_are_named(refusal: Callable[..., str]) -> None:
    assert "must be at least 1, got 0" in refusal("launch.py", "--ranks", "0")
    assert "'tails' is none of" in refusal("launch.py", "tails")
