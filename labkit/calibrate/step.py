"""The closing check: a training step of a small MLP, measured on this machine and predicted from the preset."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.calibrate.machine import Machine
from labkit.calibrate.timing import on_machine, progress, spread_of, take_turn
from labkit.hardware import Topology
from labkit.predict import Plan, Prediction, predict
from labkit.predict.describe.dense import MLP

SIZES = (784, 512, 512, 10)
BATCH = 64
"""Samples per rank."""
WARM_UP = 10
"""Steps that are not timed: in the first one Adam creates its state and DDP its buckets."""


@dataclass(frozen=True)
class Check:
    """Measured and predicted time of a step; no constant is fitted to it."""

    ranks: int
    measured_seconds: float
    """Median step time."""
    spread: float
    quickest_seconds: float
    """Step time of the fastest tenth: on an idle machine, about the median."""
    virtual_seconds: float
    """Step time of the same program on virtual ranks of the preset."""
    prediction: Prediction

    def to_plain(self) -> dict[str, Any]:
        return {
            "model": f"mlp-{'x'.join(map(str, SIZES))}, {BATCH} samples a rank, fp32, DDP, fused Adam",
            "ranks": self.ranks,
            "measured_seconds": self.measured_seconds,
            "spread": self.spread,
            "quickest_tenth_seconds": self.quickest_seconds,
            "virtual_seconds": self.virtual_seconds,
            "predicted_seconds": self.prediction.step_seconds,
            "predicted_parts": self.prediction.breakdown(),
        }


def expected(cluster: Topology, ranks: int) -> Prediction:
    """Predict the step on `ranks` ranks of one node."""
    plan = Plan(batch=BATCH * ranks, microbatch=BATCH, data=ranks, precision="fp32", fusion="none")
    return predict(MLP("mlp", SIZES), plan, replace(cluster, nnodes=1, nproc_per_node=ranks))


def measure(machine: Machine, steps: int) -> tuple[float, float, float]:
    """Return median, spread and fastest tenth of `steps` steps, after ten warm-up steps; call it on all ranks."""
    device = on_machine(machine)
    torch.manual_seed(dist.get_rank())
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    network: nn.Module = nn.Sequential(*layers[:-1]).to(device)
    if dist.get_world_size() > 1:
        network = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    images, labels = torch.rand(BATCH, SIZES[0], device=device), torch.randint(SIZES[-1], (BATCH,), device=device)
    times = []
    for step in range(WARM_UP + steps):
        take_turn()
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if step >= WARM_UP:
            times.append(time.perf_counter() - start)
    progress(f"step: {dist.get_world_size()} ranks")
    return statistics.median(times), spread_of(times), statistics.quantiles(times, n=10)[0]
