"""`ZeROTrainer` trains as a `ZeROConfig` says, as one process does, with states where it says; so does DeepSpeed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster
from labkit.course.phase3_multi_node.zero.given import ZeROConfig, ZeROTrainer

EXERCISE = catalogue.find("zero")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}
STEPS = 3

DATA = """
import torch
from torch import nn


def net(seed):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
    made[2].bias.requires_grad_(False)
    return made


generator = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(3, 8, 6, generator=generator), torch.randn(3, 8, 3, generator=generator)
"""

TRAIN = """
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from labkit.course.phase3_multi_node.zero.given import ZeROConfig, ZeROTrainer

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
config = SimpleNamespace(backend="gloo", init_method="env://", world_size=ranks, rank=rank, local_rank=rank)
results = []
for number, options in enumerate(OPTIONS):
    if "nvme_path" in options:
        options = {**options, "nvme_path": f"{options['nvme_path']}/{number}"}
    trainer = ZeROTrainer(config, ZeROConfig(**options), 0.05, 8 // config.world_size, base_batch_size=8)
    trainer.setup_distributed()
    model = trainer.wrap_model(net(seed=config.rank), partial(torch.optim.AdamW, weight_decay=0.1))
    losses = []
    for x, y in zip(inputs, targets):
        part = slice(config.rank, None, config.world_size)
        loss = trainer.train_step((x[part], y[part]), nn.functional.mse_loss)
        losses.append(trainer.all_reduce_metrics({"loss": loss})["loss"])
    kept = {}
    for path in sorted(Path(options.get("nvme_path", "/nowhere")).rglob("*")):
        kept[str(path.relative_to(options["nvme_path"]))] = path.stat().st_size
    mapped = []
    if options.get("offload_params") and "nvme_path" in options:
        files = sorted(Path(options["nvme_path"], str(config.rank)).glob("shard_*.bin"))
        shards = [flat.shard.detach().numpy() for flat in model.flats]
        mapped = [bool((np.fromfile(file, np.float32) == shard).all()) for file, shard in zip(files, shards)]
    state = model.module.state_dict() if options["stage"] == 0 else model.state_dict()
    where = type(getattr(trainer.optimizer, "optimizer", trainer.optimizer)).__name__
    results.append([losses, {name: value.clone() for name, value in state.items()}, where, list(kept), mapped])
trainer.cleanup()
results
"""


def one_process() -> tuple[list[float], dict[str, Any]]:
    space: dict[str, Any] = {}
    exec(DATA, space)
    model: nn.Module = space["net"](seed=0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    losses = []
    for x, y in zip(space["inputs"], space["targets"], strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize("cluster", [local(nproc_per_node=2), virtual(nproc_per_node=4)], ids=["local", "virtual"])
def test_each_config_trains_as_one_process_with_its_states_where_it_says(cluster: Cluster, tmp_path: Path) -> None:
    nvme = {"nvme_path": str(tmp_path)}
    options: list[dict[str, Any]] = [
        {"stage": 0},
        {"stage": 0, "overlap_comm": False},
        {"stage": 1},
        {"stage": 1, "offload_optimizer": True},
        {"stage": 2, "overlap_comm": False},
        {"stage": 2, "offload_optimizer": True, **nvme},
        {"stage": 3},
        {"stage": 3, "offload_optimizer": True},
        {"stage": 3, "offload_params": True, "overlap_comm": False},
        {"stage": 3, "offload_params": True, "offload_optimizer": True, **nvme},
    ]
    optimizers = ["AdamW"] * 3 + ["HostOptimizer", "AdamW", "DiskOptimizer", "AdamW", "HostOptimizer", "AdamW"]
    losses, weights = one_process()
    job = Job(source=f"OPTIONS = {options!r}\n{DATA}{TRAIN}", modules=MODULES, timeout=BROKEN_SECONDS)
    run = cluster.run(job).raise_if_failed()
    for rank, results in enumerate(run.values):
        for said, where, found in zip(options, [*optimizers, "DiskOptimizer"], results, strict=True):
            assert found[0] == pytest.approx(losses, rel=1e-5), said
            torch.testing.assert_close(found[1], weights, rtol=1e-5, atol=1e-6)
            assert found[2] == where, said
            assert any(name.startswith(f"optimizer/{rank}/") for name in found[3]) == ("nvme_path" in said), said
        # three layers and a bias that is not trained; files of virtual ranks are modelled
        wanted = [] if run.trace.clock == "modelled" else [True] * 4
        assert results[-1][4] == wanted, "the files have the weights after the last step"


def test_on_virtual_ranks_files_take_the_time_of_the_storage_and_no_memory_of_the_gpu(tmp_path: Path) -> None:
    source = """
import time
import labkit
from types import SimpleNamespace
import os, torch
from torch import nn
from labkit.course.phase3_multi_node.zero.given import ZeROConfig, ZeROTrainer

rank = int(os.environ["RANK"])
config = SimpleNamespace(backend="gloo", init_method="env://", world_size=2, rank=rank, local_rank=rank)
found = []
for options in ({}, {"offload_params": True}, {"offload_params": True, "offload_optimizer": True, "nvme_path": FOLDER}):
    trainer = ZeROTrainer(config, ZeROConfig(**options), 0.05, 4)
    trainer.setup_distributed()
    trainer.wrap_model(nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))), torch.optim.AdamW)
    batch = torch.empty(4, 2048), torch.empty(4, 2048)
    for _ in range(2):
        began = time.perf_counter()
        trainer.train_step(batch, nn.functional.mse_loss)
    found.append((time.perf_counter() - began, labkit.memory_allocated()))
    del trainer
found
"""
    cluster = virtual("dgx-a100", nproc_per_node=2, fake=True)
    job = Job(source=f"FOLDER = {str(tmp_path)!r}\n{source}", modules=MODULES)
    for (gpu, most), (host, some), (files, least) in cluster.run(job).raise_if_failed().values:
        assert gpu < host < files
        assert least <= some < most
    assert not list(tmp_path.rglob("*.pt")) and not list(tmp_path.rglob("*.bin")), "fake tensors have no content"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nvme_path": "/nvme"}, "nvme_path must be None unless something is offloaded, got '/nvme'"),
        ({"stage": 2, "offload_params": True}, "offload_params must be False unless stage is 3"),
    ],
)
def test_contradictory_configs_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ZeROConfig(**options)


def test_the_trainer_takes_a_config() -> None:
    bad: Any = {"stage": 3}
    with pytest.raises(ValueError, match="zero must be a ZeROConfig"):
        ZeROTrainer(SimpleNamespace(world_size=2), bad, 0.1, 2)


BY_DEEPSPEED = """
import os

os.environ["DS_ACCELERATOR"] = "cpu"  # on machines with GPUs as well
from dataclasses import asdict

import torch.distributed as dist
from labkit.course.phase3_multi_node.zero.given import ZeROConfig, create_deepspeed_config, initialize_deepspeed

dist.init_process_group("gloo")
rank, results = dist.get_rank(), []
for options in OPTIONS:
    config = create_deepspeed_config(
        micro_batch_size=4, learning_rate=0.05, optimizer_params={"weight_decay": 0.1}, **asdict(ZeROConfig(**options))
    )
    engine = initialize_deepspeed(net(seed=rank), config)
    losses = []
    for x, y in zip(inputs, targets):
        loss = nn.functional.mse_loss(engine(x[rank::2]), y[rank::2])
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
    engine.destroy()
    results.append(losses)
dist.destroy_process_group()
results
"""


def test_the_same_configs_drive_deepspeed() -> None:
    options = [{"stage": 1}, {"stage": 2, "offload_optimizer": True}, {"stage": 3, "offload_params": True}]
    job = Job(source=f"OPTIONS = {options!r}\n{DATA}{BY_DEEPSPEED}", modules=MODULES, timeout=BROKEN_SECONDS)
    losses, _ = one_process()
    for results in local(nproc_per_node=2).run(job).raise_if_failed().values:
        for said, found in zip(options, results, strict=True):
            assert found == pytest.approx(losses, rel=1e-5), said
