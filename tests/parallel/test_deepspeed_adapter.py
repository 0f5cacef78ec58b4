"""DeepSpeed trains on the lab's ranks as one process does, by configurations that it validates itself."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from labkit import Job, local, virtual
from labkit.parallel.zero.deepspeed_adapter import VERSION, initialize_deepspeed, validate_deepspeed_config
from labkit.parallel.zero.deepspeed_config import create_deepspeed_config

ROOT = Path(__file__).resolve().parents[2]
MICRO, CLIP = 3, 0.05
RUNS: list[dict[str, Any]] = [
    {"stage": 1},
    {"stage": 2},
    {"stage": 3, "param_persistence_threshold": 0},
    {"stage": 2, "gradient_accumulation_steps": 2, "optimizer": "SGD", "optimizer_params": {"momentum": 0.9}},
    {
        "stage": 3, "param_persistence_threshold": 0, "gradient_accumulation_steps": 2, "optimizer": "SGD",
        "optimizer_params": {"momentum": 0.9}, "offload_optimizer": True, "offload_params": True, "overlap_comm": False,
    },
    {"stage": 1, "optimizer": "Adam", "optimizer_params": {"weight_decay": 0.5}},
]  # fmt: skip
"""Arguments of `create_deepspeed_config`, of which the last two rows differ between Adam and AdamW, too."""

MODEL = """
import torch
from torch import nn


def model(seed):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
    made[2].bias.requires_grad_(False)
    return made


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 6, generator=generator), torch.randn(6, 3, generator=generator)) for _ in range(count)]
"""

TRAIN = """
import os
import torch.distributed as dist
from labkit.parallel.zero.deepspeed_adapter import initialize_deepspeed
from labkit.parallel.zero.deepspeed_config import create_deepspeed_config

dist.init_process_group("gloo")
rank, all_losses, sharded = dist.get_rank(), [], []
for options in RUNS:
    config = create_deepspeed_config(micro_batch_size=3, gradient_clipping=CLIP, learning_rate=0.1, **options)
    net = model(seed=rank)
    engine = initialize_deepspeed(net, config)
    losses = []
    for x, y in batches(2 * options.get("gradient_accumulation_steps", 1)):
        x, y = x.view(2, 3, -1)[rank], y.view(2, 3, -1)[rank]
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
    sharded.append(sum(p.numel() for p in net.parameters()))
    all_losses.append(losses)
    engine.destroy()
extensions = os.environ["TORCH_EXTENSIONS_DIR"]
dist.destroy_process_group()
[all_losses, sharded, os.listdir(extensions)]
"""


def one_process(
    gradient_accumulation_steps: int = 1,
    optimizer: str = "AdamW",
    optimizer_params: dict[str, Any] | None = None,
    **sharding: Any,
) -> list[float]:
    """Train by torch alone; return the loss of each whole batch."""
    space: dict[str, Any] = {}
    exec(MODEL, space)
    model: nn.Module = space["model"](seed=0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    update = getattr(torch.optim, optimizer)(trained, lr=0.1, **(optimizer_params or {}))
    losses = []
    for number, (x, y) in enumerate(space["batches"](2 * gradient_accumulation_steps), 1):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / gradient_accumulation_steps).backward()
        losses.append(loss.item())
        if number % gradient_accumulation_steps == 0:
            nn.utils.clip_grad_norm_(trained, CLIP)
            update.step()
            update.zero_grad()
    return losses


@pytest.mark.parametrize("kind", [local, virtual])
def test_deepspeed_trains_as_one_process_and_compiles_nothing(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"import os\nos.environ['TORCH_EXTENSIONS_DIR'] = {str(tmp_path)!r}\nRUNS, CLIP = {RUNS}, {CLIP}\n"
    run = kind(nproc_per_node=2).run(Job(source=source + MODEL + TRAIN, timeout=300)).raise_if_failed()
    whole = sum(p.numel() for p in nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 3)).parameters())
    for all_losses, held, compiled in run.values:
        for options, losses in zip(RUNS, all_losses, strict=True):
            assert losses == pytest.approx(one_process(**options), rel=1e-5), options
        assert held == [0 if options["stage"] == 3 else whole for options in RUNS], "at stage 3 modules hold nothing"
        assert compiled == []
