"""The program of recovery.py: every rank trains with the solutions of exercises 20 and 21, 300 steps of 5 ms or more.

FOLDER: for the checkpoints, one after every tenth step. Each rank writes its process id there.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.course.phase4_production.fault_tolerance.given import GlobalBatchSampler
from labkit.exercises import checkpointing, fault_tolerance

EVERY = 10
STEPS = 300


class EveryTenthStep(checkpointing.DistributedCheckpointer):  # type: ignore[name-defined,misc]
    """Saves by steps, not by minutes, so that the work lost can be counted."""

    def should_checkpoint(self, step: int) -> bool:
        return step % EVERY == 0


def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
    time.sleep(0.005)
    return nn.functional.mse_loss(outputs, targets)


def main() -> None:
    folder = Path(os.environ["FOLDER"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    (folder / f"rank{rank}.pid").write_text(str(os.getpid()))
    torch.manual_seed(0)
    inputs = torch.randn(800, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    loader = DataLoader(data, batch_sampler=GlobalBatchSampler(800, 8, ranks, rank))
    training = fault_tolerance.ElasticTraining(EveryTenthStep(folder, timeout_seconds=60), hang_timeout=60)
    training.train_with_fault_tolerance(model, optimizer, criterion, loader, num_epochs=STEPS // 100)
    dist.destroy_process_group()


main()
