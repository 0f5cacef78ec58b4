"""Readers of published runs: which GPU a row means, and folders that lack sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from predict_rows import MEASURED, rows  # noqa: E402


@pytest.mark.parametrize(
    ("told", "gpu"),
    [
        ("A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("H100-SXM-80GB", "h100-80gb"),
        ("H200-SXM-141GB", "h200-141gb"),
    ],
)
def test_the_gpu_of_a_row_is_the_one_it_names(told: str, gpu: str, tmp_path: Path) -> None:
    text = (MEASURED / "megatron_sc21.csv").read_text().replace("A100-SXM4-80GB", told)
    (tmp_path / "megatron_sc21.csv").write_text(text)
    assert {row.cluster.gpu.name for row in rows("megatron_sc21", tmp_path)} == {gpu}


def test_a_folder_with_one_source_is_enough(tmp_path: Path) -> None:
    (tmp_path / "megatron_sc21.csv").write_text((MEASURED / "megatron_sc21.csv").read_text())
    command = [sys.executable, "-c", "import predict; predict.speed = lambda: None; predict.main()"]
    made = subprocess.run(
        [*command, "--measured", str(tmp_path)], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    assert "| megatron_sc21 | 5 |" in made.stdout and "| 513 to" in made.stdout
