"""The solution of checkpointing: resumed runs equal uninterrupted ones, on any number of ranks, and nothing is lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import BROKEN_SECONDS

from autograder.judge import hidden_rubric
from autograder.mutants import Mutants
from labkit import Job, Run, catalogue, local, virtual
from labkit.checks import Ranks, Submission, run_checks
from labkit.course.phase4_production.checkpointing.given import FsspecStorage, LocalStorage, describe

NAMES = ("checkpointing", "zero", "data_loader", "mixed_precision")
MODULES = {catalogue.find(name).name: catalogue.find(name).source("solution")[0] for name in NAMES}

# trains a model, plain or sharded, for 4 steps, a save in the middle; then, on other ranks, for the last 2 steps
TRAINING = """
import random
import numpy as np, torch, torch.distributed as dist
from labkit.exercises import checkpointing, data_loader, mixed_precision, zero

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
kind, form, folder, resume, dropout = {kind!r}, {form!r}, {folder!r}, {resume!r}, {dropout}
torch.manual_seed(3)
data, target = torch.randn(48, 6), torch.randn(48, 2)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(5, 2))
for seed in (torch.manual_seed, np.random.seed, random.seed):
    seed(10 + rank)
if kind == "fsdp":
    model = zero.FullyShardedDataParallel(model)
if kind == "zero":
    optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, 2, lr=0.05)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
sampler = data_loader.ShardedSampler(48, n, rank, seed=5, drop_last=True)
scaler = mixed_precision.DynamicLossScaler(init_scale=4.0, growth_interval=2)
components = dict(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, scaler=scaler)


def train(steps, order):
    losses = []
    for _ in range(steps):
        rows = [next(order) for _ in range(12 // n)]
        optimizer.zero_grad()
        noise = dropout * (random.random() + np.random.rand())
        loss = (model(data[rows]) - target[rows] - noise).square().mean()
        loss.backward()
        if kind == "plain":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= n
        optimizer.step()
        scheduler.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / n)
    return losses


checkpointer = checkpointing.DistributedCheckpointer(folder, format=form)
if resume:
    with torch.no_grad():
        step = checkpointer.load_latest_checkpoint(components)
    result = [step, train(2, iter(sampler))]
else:
    order = iter(sampler)
    train(2, order)
    (checkpointer.save_async if {behind} else checkpointer.save_checkpoint)(2, components)
    result = [2, train(2, order)]
    checkpointer.wait()
result
"""


def trained(ranks: int, folder: str, *, real: bool = False, **how: Any) -> list[Any]:
    how = {"kind": "plain", "form": "sharded", "resume": False, "dropout": 0.0, "behind": False, **how}
    cluster = local(nproc_per_node=ranks) if real else virtual(nproc_per_node=ranks)
    source = TRAINING.format(folder=folder, **how)
    values = cluster.run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed().values
    assert all(value == values[0] for value in values)
    return list(values[0])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "form", "ranks"), [("plain", "sharded", 3), ("zero", "sharded", 2), ("fsdp", "full", 2)]
)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_last_bit(
    tmp_path: Path, kind: str, form: str, ranks: int
) -> None:
    how: dict[str, Any] = {"kind": kind, "form": form, "dropout": 0.5}
    whole = trained(ranks, str(tmp_path), behind=True, **how)
    assert trained(ranks, str(tmp_path), resume=True, **how) == whole


@pytest.mark.parametrize(
    ("kind", "form", "first", "second"),
    [("fsdp", "sharded", 3, 2), ("zero", "sharded", 2, 4), ("zero", "full", 4, 3), ("plain", "sharded", 4, 1)],
)
def test_another_number_of_ranks_goes_on(tmp_path: Path, kind: str, form: str, first: int, second: int) -> None:
    step, losses = trained(first, str(tmp_path), kind=kind, form=form)
    again, others = trained(second, str(tmp_path), kind=kind, resume=True)
    assert again == step
    assert others == pytest.approx(losses, rel=1e-5)


def test_shards_are_loaded_into_a_whole_model_and_back(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist
from labkit.exercises import checkpointing, zero
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
make = lambda: torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
whole, sharded, third = make(), zero.FullyShardedDataParallel(make()), make()
checkpointer = checkpointing.DistributedCheckpointer({folder!r})
checkpointer.save_checkpoint(1, {{"model": sharded}})
checkpointer.load_latest_checkpoint({{"model": whole}})
same = all(torch.equal(value, whole.state_dict()[name]) for name, value in sharded.state_dict().items())
dist.broadcast(third[0].weight.data, 0)
checkpointer.save_checkpoint(2, {{"model": third[0]}})
same
"""
    run = virtual(nproc_per_node=3).run(Job(source=source.format(folder=str(tmp_path)), modules=MODULES))
    assert run.raise_if_failed().values == [True] * 3


def test_real_processes_save_behind_training_in_memory_and_on_disk(tmp_path: Path) -> None:
    whole = trained(2, str(tmp_path), real=True, behind=True, dropout=0.5)
    assert trained(2, str(tmp_path), real=True, resume=True, dropout=0.5) == whole


SAVING = """
import os, torch, torch.distributed as dist, warnings
from labkit.exercises import checkpointing
dist.init_process_group("gloo")
weights = torch.arange(1000.0)
checkpointer = checkpointing.DistributedCheckpointer({folder!r}, 2)
results = []
{body}
results
"""


def saved(ranks: int, folder: str, body: str, **how: Any) -> Run:
    source = SAVING.format(folder=folder, body=body)
    return virtual(nproc_per_node=ranks, **how).run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS))


def test_object_stores_and_files_have_the_same_checkpoints(tmp_path: Path) -> None:
    body = """
for step in (1, 2, 3):
    checkpointer.save_async(step, {"weights": weights + step})
checkpointer.wait()
found = torch.zeros(1000)
results = [checkpointer.load_latest_checkpoint({"weights": found}), bool(torch.equal(found, weights + 3))]
"""
    for folder in (f"{tmp_path}/files", f"file://{tmp_path}/addressed", f"memory://{tmp_path.name}"):
        assert saved(2, folder, body).raise_if_failed().values == [[3, True]] * 2
    listed = [LocalStorage(tmp_path / "files").list(""), FsspecStorage(f"file://{tmp_path}/addressed").list("")]
    names = [[name for name in one if name.startswith("step_")] for one in listed]
    assert names == [["step_00000002", "step_00000003"]] * 2


def test_a_job_that_cannot_write_says_why_and_loses_nothing(tmp_path: Path) -> None:
    body = """
checkpointer.save_checkpoint(1, {"weights": weights})
class Full(type(checkpointer.storage)):
    def write(self, path, parts):
        if "rank_00001" in path:
            raise OSError(28, "No space left on device", path)
        super().write(path, parts)
checkpointer.storage.__class__ = Full
try:
    checkpointer.save_checkpoint(2, {"weights": weights})
except checkpointing.CheckpointError as error:
    results.append(str(error))
results.append(checkpointer.load_latest_checkpoint({"weights": weights}))
"""
    for message, step in saved(2, str(tmp_path), body).raise_if_failed().values:  # type: ignore[misc]
        assert re.fullmatch(r"rank 1: step_00000002.tmp/rank_00001.bin: the disk is full: .*", message)
        assert step == 1


def test_two_jobs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    first = LocalStorage(tmp_path)
    first.make_folder("step_00000001.tmp")
    source = """
import torch, torch.distributed as dist
from labkit.exercises import checkpointing
dist.init_process_group("gloo")
checkpointer = checkpointing.DistributedCheckpointer({folder!r})
try:
    checkpointer.save_checkpoint(2, {{"weights": torch.ones(3)}})
except checkpointing.CheckpointError as error:
    message = str(error)
message
"""
    job = Job(source=source.format(folder=str(tmp_path)), modules=MODULES)
    for message in local(nproc_per_node=2).run(job).raise_if_failed().values:
        assert "another job writes checkpoints there" in str(message)
    assert (tmp_path / "step_00000001.tmp").is_dir()


def test_a_file_of_pickles_is_never_opened(tmp_path: Path) -> None:
    """All that is read are bytes and JSON: a manifest or a data file that is a pickle is a corrupt one."""
    folder = tmp_path / "step_00000005"
    folder.mkdir()
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR."
    for name in ("manifest.json", "rank_00000.bin"):
        (folder / name).write_bytes(evil)
    body = """
with warnings.catch_warnings(record=True):
    try:
        checkpointer.load_latest_checkpoint({"weights": weights})
    except checkpointing.CheckpointError as error:
        results.append(str(error))
"""
    (message,), *_ = saved(1, str(tmp_path), body).raise_if_failed().values  # type: ignore[misc]
    assert "step_00000005" in message and "corrupt" in message
    assert not (tmp_path / "owned").exists()


def test_wrong_arguments_are_named_before_anything_is_sent(tmp_path: Path) -> None:
    body = """
new, good = checkpointing.DistributedCheckpointer, {"weights": weights}
tried = {
    "keep_last_n": lambda: new("x", 0),
    "checkpoint_interval_minutes": lambda: new("x", 1, -1.0),
    "format": lambda: new("x", format="pickle"),
    "mode": lambda: new("x", mode="best"),
    "checkpoint_dir": lambda: new(3),
    "step": lambda: checkpointer.save_checkpoint(-1, good),
    "components": lambda: checkpointer.save_async(1, {"weights": 3}),
    "metrics": lambda: checkpointer.save_checkpoint(1, good, {"loss": "low"}),
    "metric": lambda: checkpointer.load_best_checkpoint(good),
}
for name, action in tried.items():
    if dist.get_rank() == 0:
        try:
            action()
        except ValueError as error:
            results.append(str(error).startswith(name))
"""
    assert saved(2, str(tmp_path), body).raise_if_failed().values[0] == [True] * 9


def test_fake_tensors_take_the_time_of_the_storage(tmp_path: Path) -> None:
    """8 ranks on 2 nodes, 80 GB: each node writes 40 GB at 1 GB/s, behind training."""
    body = """
import time
whole = torch.empty(20_000_000_000)
began = time.monotonic()
checkpointer.save_async(1, {"weights": whole})
stall = time.monotonic() - began
checkpointer.wait()
written = time.monotonic() - began
checkpointer.load_latest_checkpoint({"weights": whole})
results = [stall, written, time.monotonic() - began - written]
"""
    how = {"nnodes": 2, "fake": True, "gpu": "b200-180gb", "storage": "cloud-disk-1gb"}
    run = saved(4, str(tmp_path), body, **how)
    stall, written, read = run.raise_if_failed().values[0]  # type: ignore[misc]
    assert stall < 1
    assert written == pytest.approx(40, abs=1.5)
    assert read == pytest.approx(4 * 80, rel=0.02)  # each rank reads all


@pytest.mark.parametrize("seed", [2, 3, 9])
def test_no_draw_of_the_hidden_check_hides_that_rank_0_alone_writes(seed: int) -> None:
    exercise = catalogue.find("checkpointing")
    rubric = hidden_rubric(exercise)
    rubric = replace(rubric, checks=[check for check in rubric.checks if check.name == "one_at_a_time"])
    mutant = Submission(exercise, Mutants(exercise).text("first_rank_only"))
    assert run_checks(rubric, mutant, Ranks(), seed=seed).earned == 0


def test_a_full_disk_is_named_by_the_file_that_did_not_fit(tmp_path: Path) -> None:
    """/dev/full is always full."""
    storage = LocalStorage(tmp_path)
    storage.make_folder("step_00000001.tmp")
    (tmp_path / "step_00000001.tmp" / "rank_00000.bin").symlink_to("/dev/full")
    with pytest.raises(OSError) as failure:
        storage.write("step_00000001.tmp/rank_00000.bin", [b"weights"])
    path = tmp_path / "step_00000001.tmp" / "rank_00000.bin"
    assert describe(failure.value) == f"{path}: the disk is full: free some space, or keep fewer checkpoints"
