"""The benchmark of solutions against the library runs, finds equal values, and reports where they differ."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOLUTIONS = Path(__file__).parents[2] / "benchmarks" / "solutions.py"
NUMBER = r"[\d.e+-]+"

WORK = {
    "process_group": ["all_reduce of a tensor, 4 ranks", "all_gather_object, 4 ranks", "init_process_group, 4 ranks"],
    "collectives": ["broadcast, 4 kB, 4 ranks", "all_gather, 4 kB", "all_reduce_tree, 4 kB"],
    "ring_allreduce": ["ring_all_reduce, 4 kB, 4 ranks"],
    "data_loader": ["epoch of 0.01 million samples begins, rank 0 of 1", "rank 0 of 4", "rank 0 of 64"],
    "activation_checkpointing": ["step, 12 blocks, each a segment", "in 4 segments", "offloaded"],
    "trainer": ["step, flat, 34 kB of gradients; DDP with one bucket", "step, tree, 34 kB"],
    "gradient_accumulation": ["window of 1, 34 kB of gradients; DDP no_sync, one bucket", "window of 4, 34 kB"],
    "tensor_parallel": ["block of width 64, forward and backward", "loss of 256 tokens of 512"],
    "pipeline_parallel": ["gpipe, 8 microbatches; on rank 0", "1f1b, 8 microbatches; on rank 0"],
    "mixed_precision": ["unscale_ and update, 33 kB of weights, 1 rank", "autocast_step, float16, 33 kB of weights"],
}


@pytest.mark.parametrize("part", WORK)
def test_each_part_does_the_same_work_as_the_library(part: str) -> None:
    command = [sys.executable, str(SOLUTIONS), part, "--quick"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for work in WORK[part]:
        assert re.search(rf"{work}[^│]*│ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │ +(-|1.1: \w+) │ +equal", output), output


def test_bad_options_are_named() -> None:
    for options, message in (["--repetitions", "0"], "must be at least 1, got 0"), (["ring"], "'ring' is none of"):
        ended = subprocess.run([sys.executable, str(SOLUTIONS), *options], capture_output=True, text=True)
        assert ended.returncode == 2 and message in ended.stderr
