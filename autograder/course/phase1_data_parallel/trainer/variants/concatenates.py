"""Right: creates a tensor for each gradient and concatenates them at the end."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from labkit.exercises import collectives

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

    def train_step(self, batch):
        inputs, targets = batch
        if len(inputs) != len(targets):
            raise ValueError(f"batch must have as many inputs as targets, got {len(inputs)} and {len(targets)}")
        began = time.perf_counter()
        count, loss = len(targets), torch.zeros(())
        self.model.zero_grad()
        if count:
            loss = self.loss_fn(self.model(inputs), targets)
            loss.backward()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        parts = [part.reshape(-1).to(dtype) for part in parts]
        rest = torch.tensor([*(p.grad is not None for p in parameters), loss.item(), 1], dtype=dtype)
        pieces = [piece * count for piece in (*parts, rest)]
        packed = time.perf_counter()
        *sums, rest = self.add_up(pieces)
        added_up = time.perf_counter()
        mean, total = float("nan"), rest[-1].item()
        if total:
            mean = rest[-2].item() / total
            for p, part, share in zip(parameters, sums, rest.tolist(), strict=False):
                p.grad = (part / total).view(p.shape).to(p.dtype) if share else None
            self.optimizer.step()
        communication = added_up - packed
        return StepMetrics(mean, time.perf_counter() - began - communication, communication)

    def add_up(self, pieces):
        if self.reduction == "per_parameter":
            for piece in pieces:
                dist.all_reduce(piece, group=self.group)
            return pieces
        flat = torch.cat(pieces)
        if self.reduction == "flat":
            dist.all_reduce(flat, group=self.group)
        elif self.reduction == "tree":
            collectives.all_reduce_tree(flat, group=self.group)
        else:
            size, is_first = dist.get_world_size(self.group), dist.get_rank() == self.first
            parts = [torch.empty_like(flat) for _ in range(size)] if is_first else None
            dist.gather(flat, parts, self.first, self.group)
            dist.scatter(flat, [sum(parts)] * size if is_first else None, self.first, self.group)
        return flat.split([len(piece) for piece in pieces])


def scaled_learning_rate(learning_rate, global_batch_size, step, *, base_batch_size=256, warmup_steps=0):
    if global_batch_size <= 0 or base_batch_size <= 0 or step < 0 or warmup_steps < 0:
        raise ValueError(f"sizes must be above 0, steps 0 or more, got {global_batch_size, base_batch_size, step}")
    full = learning_rate * global_batch_size / base_batch_size
    if step >= warmup_steps:
        return full
    return learning_rate + (full - learning_rate) * step / warmup_steps
