"""torch's pipeline schedules: losses, and what this rank's parameters sum to after two steps, by schedule."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()


def train(schedule: Any, microbatches: int, stages_per_rank: int = 1, folded: bool = False) -> list[Any]:
    """folded: the last stage is on the same rank as the first one, as V-shaped schedules require."""
    torch.manual_seed(0)
    total = n * stages_per_rank
    layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(total)]
    mine = [rank, total - 1 - rank] if folded else list(range(rank, total, n))
    stages = [PipelineStage(layers[stage], stage, total, torch.device("cpu")) for stage in mine]
    pipeline = schedule(
        stages[0] if stages_per_rank == 1 else stages,
        n_microbatches=microbatches,
        loss_fn=lambda output, target: (output - target).pow(2).mean(),
    )
    parameters = [p for stage in mine for p in layers[stage].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses: list[torch.Tensor] = []
    for step in range(2):
        torch.manual_seed(step)
        x, y = torch.randn(16, 6), torch.randn(16, 6)
        of_step: list[torch.Tensor] = []
        pipeline.step(*([x] if 0 in mine else []), **({"target": y, "losses": of_step} if total - 1 in mine else {}))
        losses += of_step
        optimizer.step()
        optimizer.zero_grad()
    return [[loss.item() for loss in losses], [p.sum().item() for p in parameters]]


{
    "GPipe": train(schedules.ScheduleGPipe, 4),
    "1F1B": train(schedules.Schedule1F1B, 8),
    "Interleaved1F1B": train(schedules.ScheduleInterleaved1F1B, 4, 2),
    "LoopedBFS": train(schedules.ScheduleLoopedBFS, 4, 2),
    "InterleavedZeroBubble": train(schedules.ScheduleInterleavedZeroBubble, 4, 2),
    "ZBVZeroBubble": train(schedules.ScheduleZBVZeroBubble, 8, 2, folded=True),
    "DualPipeV": train(schedules.ScheduleDualPipeV, 8, 2, folded=True),
}
