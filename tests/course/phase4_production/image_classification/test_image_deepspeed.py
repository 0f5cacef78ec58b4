"""DeepSpeed's engine in the place of the trainer of image_classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit import Job, catalogue, local

ROOT = Path(__file__).resolve().parents[4]
EXERCISE = catalogue.find("image_classification")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}


def trained(words: list[str]) -> list[dict[str, Any]]:
    """On a rank: train one epoch, then go on for a second one with another engine."""
    import os

    import torch.distributed as dist

    os.environ["DS_ACCELERATOR"] = "cpu"  # on machines with GPUs as well
    from labkit.exercises import image_classification

    dist.init_process_group("gloo")  # DeepSpeed holds on to the first group
    return [image_classification.main([*words, "--epochs", "1"]), image_classification.main([*words, "--epochs", "2"])]


def test_it_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = ["--deepspeed", str(ROOT / "cluster/configs/deepspeed.json"), "--batch-size", "128", "--resume"]
    job = Job.calling(trained, [*words, "--checkpoint-dir", str(tmp_path)], modules=MODULES)
    ((first, second),) = local(nproc_per_node=1).run(job).raise_if_failed().values
    assert (first["epoch"], first["step"], first["strategy"]) == (1, 12, "deepspeed")
    # DeepSpeed does not say how long it communicates
    assert first["communication_time"] is None and first["compute_time"] > 0
    assert (second["epoch"], second["step"]) == (2, 24) and second["loss"] < first["loss"] - 0.2
