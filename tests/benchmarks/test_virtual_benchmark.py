"""The benchmark of virtual ranks runs and prints each figure next to its peer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

VIRTUAL = Path(__file__).parents[2] / "benchmarks" / "virtual.py"


@pytest.mark.exhaustive
def test_prints_all_of_its_figures() -> None:
    command = [sys.executable, str(VIRTUAL), "--quick"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    number = r"\d+\.\d+"
    assert re.search(
        rf"ring all-reduce, 480 messages +│ +16 │ +{number} │ +- │( +{number} │){{3}} +cannot: no send", output
    )
    for program in ("100 all_reduce of 1,000 floats", "3 steps of DDP, MLP"):
        columns = (
            rf"{program} +│ +\d+ │ +{number} │ +-( │ +{number}){{2}} │ +({number}|cannot) │ +{number} │ +{number}x"
        )
        assert re.search(columns, output), output
    for program, ranks in (
        ("FSDP2", 8),
        ("Data x pipeline x tensor 2 x 2 x 2", 8),
        ("Data x pipeline x tensor 2 x 4 x 2", 16),
    ):
        expected = (
            rf"{program}, GPT, tiny[^0-9]* {ranks} ranks with fake tensors, one step: "
            rf"{number} s inside, {number} s CPU, {number} s whole, torch alone {number} s"
        )
        assert re.search(expected, " ".join(output.split())), output
    assert re.search(r"tracing adds -?\d+%", output)
    assert re.search(rf"32 │ +512 │ +{number} │ +{number}", output)
