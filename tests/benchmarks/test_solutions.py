"""The benchmark of solutions against the library runs, finds equal values, and reports where they differ."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.catalogue import all_exercises

SOLUTIONS = Path(__file__).parents[2] / "benchmarks" / "solutions.py"
NUMBER = r"[\d.e+-]+"

WORK = {
    "process_group": ["all_reduce of a tensor, 4 ranks", "all_gather_object, 4 ranks", "init_process_group, 4 ranks"],
    "collectives": ["broadcast, 4 kB, 4 ranks", "all_gather, 4 kB", "all_reduce_tree, 4 kB"],
    "ring_allreduce": ["ring_all_reduce, 4 kB, 4 ranks"],
    "ddp": ["step, buckets of 1 MB; memory", "step, buckets of 25 MB, views; memory"],
    "gradient_compression": ["16 kB as 0.3 kB", "16 kB as 2.0 kB"],
    "parameter_server": ["1 worker, 4 kB, async", "4 workers, 4 kB, async"],
    "zero": ["step, stage 3; FSDP2", "step, stage 2; ZeroRedundancyOptimizer"],
    "local_sgd": ["step, period 4, 8,320 parameters, 4 ranks"],
    "parallel_3d": ["step on dp, pp, tp = 1, 2, 2, width 32", "step on dp, pp, tp = 2, 2, 1, width 32"],
    "context_parallel": ["ring, 256 tokens, 4 heads, 1 rank; one process", "gather, 256 tokens, 4 heads, 4 ranks"],
    "expert_parallel": ["8 experts, 64 tokens of 16 on each of 4 ranks"],
    "checkpointing": ["save, 0.3 and 0.3 MB on disk, 2 ranks; DCP", "load, 0.3 and 0.3 MB", "stall of an asynchronous"],
    "fault_tolerance": ["step, 8,320 parameters, 4 ranks; DDP"],
    "scaling_study": ["step of a small model, 2 ranks, as timed; torch", "fit of 9 points; scipy"],
    "monitoring": ["step of a small model, 2 ranks; without a monitor", "scalars of a step; TensorBoard's writer"],
    "autotune": [
        "search of a layout for gpt2-xl on 8 GPUs; every layout",
        "27 configurations, 864 steps; random",
    ],
    "image_classification": [
        "step of mlp, 16 digits a rank; torch's DDP",
        "step of mlp, 16 digits a rank, 4 microbatches",
    ],
    "llm_13b": ["step of a sibling of width 32, 2 stages x 2 ranks; one process"],
    "hierarchical_allreduce": [
        "2 x 2 virtual, 2 x 10 Gb/s; flat ring",
        "2 x 2 virtual, 1 x 10 Gb/s; NCCL's model",
        "4 local ranks as 2 nodes; gloo",
    ],
    "data_loader": ["epoch of 0.01 million samples begins, rank 0 of 1", "rank 0 of 4", "rank 0 of 64"],
    "activation_checkpointing": ["step, 12 blocks, each a segment", "in 4 segments", "offloaded"],
    "trainer": ["step, flat, 34 kB of gradients; DDP with one bucket", "step, tree, 34 kB"],
    "gradient_accumulation": ["window of 1, 34 kB of gradients; DDP no_sync, one bucket", "window of 4, 34 kB"],
    "tensor_parallel": ["block of width 64, forward and backward", "loss of 256 tokens of 512"],
    "pipeline_parallel": ["gpipe, 8 microbatches; on rank 0", "1f1b, 8 microbatches; on rank 0"],
    "mixed_precision": ["unscale_ and update, 33 kB of weights, 1 rank", "autocast_step, float16, 33 kB of weights"],
}


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    """The table of each part, from one run of all: they share a process and the one that starts its ranks."""
    done = subprocess.run([sys.executable, str(SOLUTIONS), "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    _, *parts = re.split(r"^(\w+), \d+ cores *\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.exhaustive
def test_all_parts_are_run_in_the_courses_order(tables: dict[str, str]) -> None:
    assert list(tables) == [exercise.short_name for exercise in all_exercises()]
    assert set(tables) == set(WORK)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", WORK)
def test_each_part_does_the_same_work_as_the_library(part: str, tables: dict[str, str]) -> None:
    for work in WORK[part]:
        target = "1.05" if part in ("ddp", "zero", "monitoring") else "1.1"
        row = rf"{work}[^│]*│ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │ +(-|{target}: \w+) │ +equal"
        assert re.search(row, tables[part]), tables[part]


def test_bad_options_are_named(refusal: Callable[..., str]) -> None:
    assert "must be at least 1, got 0" in refusal("solutions.py", "--repetitions", "0")
    assert "'ring' is none of" in refusal("solutions.py", "ring")
