"""Torch's DistributedDataParallel does the work; the loss is added up after it."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

__all__ = ["REDUCTIONS", "DataParallelTrainer", "StepMetrics", "scaled_learning_rate"]
REDUCTIONS = ("per_parameter", "flat", "gather_scatter", "tree")


@dataclass(frozen=True)
class StepMetrics:
    loss: float
    compute_seconds: float
    communication_seconds: float


class DataParallelTrainer:
    def __init__(self, model, optimizer, loss_fn, group=None, reduction="flat"):
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")
        mine = set(model.parameters())
        if any(p not in mine for entry in optimizer.param_groups for p in entry["params"]):
            raise ValueError("optimizer must hold parameters of model only")
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.group, self.reduction = group, reduction
        self.first = dist.get_process_group_ranks(group)[0]
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, self.first, group)
            tensor.detach().copy_(sent)
        self.ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group)

    def train_step(self, batch):
        inputs, targets = batch
        if len(inputs) != len(targets):
            raise ValueError(f"batch must have as many inputs as targets, got {len(inputs)} and {len(targets)}")
        began = time.perf_counter()
        count, loss = len(targets), torch.zeros(())
        self.model.zero_grad()
        if count:
            loss = self.loss_fn(self.ddp(inputs), targets)
            loss.backward()
        packed = time.perf_counter()
        found = loss.detach() / dist.get_world_size(self.group)
        dist.all_reduce(found, group=self.group)
        added_up = time.perf_counter()
        mean = found.item()
        self.optimizer.step()
        communication = added_up - packed
        return StepMetrics(mean, time.perf_counter() - began - communication, communication)


def scaled_learning_rate(learning_rate, global_batch_size, step, *, base_batch_size=256, warmup_steps=0):
    if global_batch_size <= 0 or base_batch_size <= 0 or step < 0 or warmup_steps < 0:
        raise ValueError(f"sizes must be above 0, steps 0 or more, got {global_batch_size, base_batch_size, step}")
    full = learning_rate * global_batch_size / base_batch_size
    if step >= warmup_steps:
        return full
    return learning_rate + (full - learning_rate) * step / warmup_steps
