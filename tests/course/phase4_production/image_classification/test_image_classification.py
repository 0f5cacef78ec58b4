"""The solution of image_classification: steps of one process, exact resumes with real files, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.virtual import kill
from labkit.course.phase4_production.image_classification.scenarios import expected
from labkit.exercises import load

EXERCISE = catalogue.find("image_classification")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}


@pytest.fixture(autouse=True)
def written(workspace: Path) -> None:
    """The learner's modules are the solutions."""
    for name, source in MODULES.items():
        catalogue.find(name).save(source)


def run(cluster: Cluster, source: str, *arguments: Any) -> list[Any]:
    """Return what each rank returns; `arguments` are its variable of that name."""
    job = Job(source=f"arguments = {arguments!r}\n{source}", modules=MODULES, timeout=BROKEN_SECONDS)
    return list(cluster.run(job).raise_if_failed().values)


STEPS = """
import torch, torch.distributed as dist
from labkit.course.phase4_production.image_classification.scenarios import CLASSES, FEATURES, shapes, stepped

dist.init_process_group("gloo")
options, = arguments
draw = torch.Generator().manual_seed(0)
weights = [torch.randn(shape, generator=draw, dtype=torch.float64) / 2 for shape in shapes()]
batches = [
    [[torch.randn(7, FEATURES, generator=draw, dtype=torch.float64), torch.randint(CLASSES, (7,), generator=draw)]
     for _ in range(3)]
    for _ in range(dist.get_world_size())
]
found = stepped(options, weights, batches[dist.get_rank()])
[found["losses"], found["weights"], found["averages"], weights, batches]
"""


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {"strategy": "fsdp"}),
        (3, {"strategy": "ddp", "gradient_accumulation_steps": 2}),
        (4, {"strategy": "fsdp", "gradient_accumulation_steps": 3, "activation_checkpointing": True}),
        (2, {"strategy": "fsdp", "cpu_offload": True}),
        (4, {"strategy": "hybrid", "shard_ranks": 2, "gradient_accumulation_steps": 2}),
        (4, {"strategy": "hybrid", "shard_ranks": 1, "cpu_offload": True}),
    ],
    ids=str,
)
def test_a_step_is_that_of_one_process(ranks: int, options: dict[str, Any]) -> None:
    values = run(virtual(nproc_per_node=ranks), STEPS, {**options, "gradient_clip_val": 0.1, "ema_decay": 0.6})
    _, _, _, weights, batches = values[0]
    right = expected(weights, batches, 0.1, 0.6)
    for rank, (losses, after, averages, _, _) in enumerate(values):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor([one[rank] for one in right["losses"]]))
        torch.testing.assert_close(after, right["weights"])
        torch.testing.assert_close(averages, right["averages"])


def test_real_processes_take_the_same_steps() -> None:
    options = {"strategy": "ddp", "gradient_accumulation_steps": 3}
    real, modelled = (run(cluster, STEPS, options) for cluster in (local(nproc_per_node=2), virtual(nproc_per_node=2)))
    for mine, other in zip(real, modelled, strict=True):
        torch.testing.assert_close(mine[1], other[1])


BESIDE_DDP = """
import torch, torch.distributed as dist
from labkit.course.phase4_production.image_classification.scenarios import CLASSES, FEATURES, shapes, stepped
from labkit.exercises import image_classification

dist.init_process_group("gloo")
options, = arguments
rank, draw = dist.get_rank(), torch.Generator().manual_seed(0)
weights = [torch.randn(shape, generator=draw) / 2 for shape in shapes()]
draw.manual_seed(1 + rank)
batches = [[torch.randn(6, FEATURES, generator=draw), torch.randint(CLASSES, (6,), generator=draw)] for _ in range(3)]
planted = [2] if rank == 3 and options["mixed_precision"] == "fp16" else []  # an overflow
found = stepped(options, weights, batches, "float32", planted)
trainer = image_classification.DistributedTrainer(torch.nn.Linear(2, 2), **options)
groups = [dist.get_process_group_ranks(one) for one in (trainer.shard_group, trainer.replica_group) if one]
[found["weights"], found["scales"], groups]
"""


@pytest.mark.parametrize("mixed_precision", ["no", "fp16"])
def test_hybrid_equals_ddp_on_two_nodes_of_real_ranks(mixed_precision: str) -> None:
    """Without `shard_ranks` a model is in shards on a node's ranks, as many as the launcher says."""
    ddp, hybrid = (
        run(local(nnodes=2, nproc_per_node=2), BESIDE_DDP, {"strategy": strategy, "mixed_precision": mixed_precision})
        for strategy in ("ddp", "hybrid")
    )
    for rank, (mine, theirs) in enumerate(zip(hybrid, ddp, strict=True)):
        # ddp multiplies in 16 bits, but keeps weights and sums in 32; hybrid sends them in 16
        tolerances = {} if mixed_precision == "no" else {"rtol": 0.0, "atol": 2e-3}
        torch.testing.assert_close(mine[0], theirs[0], **tolerances)
        assert mine[1] == theirs[1], "the loss scale after each step"
        assert (theirs[2], mine[2]) == ([], [[rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]])


MAIN = """
from labkit.exercises import image_classification

reports = [image_classification.main(list(words)) for words in arguments]
[(report["loss"], report["step"], report["top1"], report["strategy"]) for report in reports]
"""
SHORT = ["--model", "mlp", "--epochs", "2", "--batch-size", "128", "--ema", "0.9", "--checkpoint-minutes", "1e-6"]


@pytest.mark.parametrize(
    "options",
    [
        ["--strategy", "ddp", "--compression", "int8"], ["--strategy", "fsdp"],
        ["--strategy", "hybrid", "--shard-ranks", "1", "--mixed-precision", "fp16"],
    ],
    ids=str,
)  # fmt: skip
def test_a_killed_training_goes_on_exactly(tmp_path: Path, options: list[str]) -> None:
    """With exercise 20's files, checkpoints after every step: also on resuming where no epoch ends."""
    words = [*SHORT, *options, "--checkpoint-dir"]
    whole = virtual(nproc_per_node=2).run(
        Job(source=f"arguments = {([*words, str(tmp_path / 'whole')],)!r}\n{MAIN}", modules=MODULES)
    )
    folder = tmp_path / "killed"
    source = f"arguments = {([*words, str(folder)],)!r}\n{MAIN}"
    faults = [kill(1, at=0.6 * whole.raise_if_failed().trace.seconds)]
    cut = virtual(nproc_per_node=2, faults=faults).run(Job(source=source, modules=MODULES))
    assert any(rank.error is not None for rank in cut.ranks)
    assert 2 <= int(max(path.name for path in folder.glob("step_????????"))[5:]) < 12
    resumed = run(virtual(nproc_per_node=2), MAIN, [*words, str(folder), "--resume"])
    assert resumed == whole.values


def test_another_number_of_ranks_resumes(tmp_path: Path) -> None:
    words = [*SHORT, "--strategy", "fsdp", "--log-dir", str(tmp_path / "log"), "--checkpoint-dir", str(tmp_path)]
    ((first,),) = run(virtual(nproc_per_node=1), MAIN, [*words[:3], "1", *words[4:]])
    values = run(virtual(nproc_per_node=3), MAIN, [*words, "--resume"])
    assert [value[0][1] for value in values] == [first[1] + 4] * 3
    epochs = json.loads((tmp_path / "log" / "metrics.json").read_text())["epochs"]
    assert [line["epoch"] for line in epochs] == [1, 2]
    assert {"samples_per_second_per_gpu", "communication_overhead_percent", "top5"} <= epochs[1].keys()
    assert len(list((tmp_path / "log").glob("rank-*.jsonl"))) == 3


def test_hybrid_shards_are_resumed_and_evaluated_on_other_ranks(tmp_path: Path) -> None:
    """Four ranks of two nodes, then three without nodes, where the pairs of the first training would not fit."""
    words = [*SHORT, "--strategy", "hybrid", "--checkpoint-dir", str(tmp_path)]
    values = run(virtual(nnodes=2, nproc_per_node=2), MAIN, [*words[:3], "1", *words[4:]])
    ((first,), *_) = values
    assert values == [values[0]] * 4 and first[3] == "hybrid"
    source = """
from labkit.course.phase4_production.image_classification.given import from_checkpoint
from labkit.exercises import image_classification, process_group

asked = ["evaluate", "--checkpoint-dir", arguments[0][0]]
result = from_checkpoint.main(
    process_group, image_classification.DistributedTrainer, image_classification.ImageTrainer, asked
)
[result["step"], result["loss"], result["top1"]]
"""
    for step, loss, top1 in run(virtual(nproc_per_node=3), source, [str(tmp_path)]):
        assert (step, top1) == (first[1], first[2]) and loss == pytest.approx(first[0], rel=1e-5)
    more = [*words, "--resume"]
    values = run(virtual(nproc_per_node=2), MAIN, [*more, "--shard-ranks", "1"])
    assert [value[0][1] for value in values] == [first[1] + 6] * 2


def test_the_command_trains_on_a_folder_of_images(tmp_path: Path) -> None:
    """Images of two colours, PNG and JPEG, one in grey and one of another size: a ResNet tells the colours apart."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 5)):
        for place, colour in enumerate(("blue", "red")):
            folder = tmp_path / split / colour
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 60, (40 + number, 50, 3), dtype=np.uint8)
                pixels[:, :, 2 * (1 - place)] += 150
                Image.fromarray(pixels).save(folder / f"{number}.{'jpg' if number % 2 else 'png'}")
    words = ["--data", str(tmp_path), "--image-size", "32", "--model", "resnet8", "--epochs", "6", "--batch-size", "6"]
    values = run(local(nproc_per_node=2), MAIN, [*words, "--label-smoothing", "0", "--workers", "1"])
    assert values[0] == values[1]
    assert values[0][0][2] >= 0.9


def test_auto_takes_what_fits() -> None:
    solution = load(EXERCISE, MODULES[EXERCISE.name])
    assert solution.choose_strategy(10**9, 8, 20.0) == ("ddp", False)
    assert solution.choose_strategy(10**9, 8, 19.9) == ("fsdp", False)
    assert solution.choose_strategy(10**9, 8, 16.0, optimizer_bytes=0) == ("ddp", False)
    assert solution.choose_strategy(10**9, 8, 1.5, unit_gb=0.5) == ("fsdp", True)
    with pytest.raises(ValueError, match="memory_gb must be"):
        solution.choose_strategy(10**9, 8, 1.4, unit_gb=0.5)


AUTO = """
import torch, torch.distributed as dist
from labkit.exercises import image_classification
from labkit.models import ViT
from labkit.course.phase4_production.image_classification.given.memory import activation_gb

dist.init_process_group()
found = []
for width in (64, 2048):
    model = ViT(3, 32, 10, patch=8, layers=4, heads=8, width=width)
    trainer = image_classification.DistributedTrainer(model, activation_gb=8 * activation_gb(model, (3, 32, 32)))
    for _ in range(2):
        trainer.train_step((torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64)))
    found.append(trainer.strategy)
    del trainer, model
found
"""


def test_auto_fits_into_a_modelled_gpu() -> None:
    """4 GPUs of 3 GB: 200 million parameters in float32 take 4 GB with DDP, and train in shards."""
    cluster = virtual(nproc_per_node=4, gpu="a100-80gb", fake=True, settings={"gpu.memory_gb": 3.0})
    assert run(cluster, AUTO) == [["ddp", "fsdp"]] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "zero"}, "strategy must be one of auto, ddp, fsdp, hybrid, got 'zero'"),
        ({"mixed_precision": "fp8"}, "mixed_precision must be one of no, bf16, fp16, got 'fp8'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be an integer from 1, got 0"),
        ({"gradient_clip_val": -1.0}, "gradient_clip_val must be a number above 0, or None, got -1.0"),
        ({"strategy": "fsdp", "compression": "topk"}, "compression must be None with strategy 'fsdp'"),
        ({"strategy": "hybrid", "compression": "topk"}, "compression must be None with strategy 'hybrid'"),
        ({"strategy": "hybrid", "shard_ranks": 3}, "shard_ranks must divide the 2 ranks, got 3"),
        ({"strategy": "fsdp", "shard_ranks": 2}, "shard_ranks must be None with strategy 'fsdp'"),
        ({"strategy": "ddp", "cpu_offload": True}, "cpu_offload must be False with strategy 'ddp'"),
        ({"compression": "zip", "strategy": "ddp"}, "compression must be one of int8, onebit, powersgd, topk"),
        ({"ema_decay": 1.5}, "ema_decay must be a number above 0 and below 1, or None, got 1.5"),
    ],
    ids=str,
)
def test_bad_arguments_are_named_before_anything_is_sent(options: dict[str, Any], message: str) -> None:
    source = """
import torch, torch.distributed as dist
from labkit.exercises import image_classification

dist.init_process_group()
if dist.get_rank() == 0:
    image_classification.DistributedTrainer(torch.nn.Linear(2, 2), **arguments[0])
"""
    job = Job(source=f"arguments = {(options,)!r}\n{source}", modules=MODULES)
    error = virtual(nproc_per_node=2).run(job).ranks[0].error
    assert error is not None and error.type == "ValueError" and message in error.message


def test_as_a_command_it_is_made_of_the_solutions_and_an_import_changes_no_workspace(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LABKIT_WORKSPACE"}
    imports = "import os, solutions; print(os.environ.get('LABKIT_WORKSPACE'))"
    command = ["-m", f"solutions.{EXERCISE.name.replace('/', '.')}", "--epochs", "1", "--model", "mlp"]
    for arguments, wanted in ((["-c", imports], "None\n"), ([*command, "--log-dir", str(tmp_path)], '"epoch": 1,')):
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=catalogue.root(), capture_output=True, text=True
        )
        assert done.returncode == 0 and wanted in done.stdout, done.stderr
    assert (tmp_path / "metrics.json").is_file()
