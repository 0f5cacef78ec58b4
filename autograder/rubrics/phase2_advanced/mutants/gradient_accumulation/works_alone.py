"""Each rank accumulates by itself; what it sends, it throws away."""

import math

import torch
import torch.distributed as dist

__all__ = ["GradientAccumulator"]


class GradientAccumulator:
    def __init__(self, model, optimizer, steps, max_norm=None, group=None):
        mine = set(model.parameters())
        if steps < 1:
            raise ValueError(f"steps must be above 0, got {steps}")
        if max_norm is not None and max_norm <= 0:
            raise ValueError(f"max_norm must be above 0, got {max_norm}")
        if any(p not in mine for entry in optimizer.param_groups for p in entry["params"]):
            raise ValueError("optimizer must hold parameters of model only")
        self.model, self.optimizer, self.steps = model, optimizer, steps
        self.max_norm, self.group = max_norm, group
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.clear()

    def clear(self):
        self.microbatches, self.samples = 0, 0.0
        self.model.zero_grad()

    def backward(self, loss, samples=1):
        if samples < 0 or loss.numel() != 1:
            raise ValueError(f"samples must be 0 or more, loss one number, got {samples}, {loss}")
        if samples:
            (loss * samples).backward()
            self.samples += samples
        return loss.detach()

    def step(self):
        self.microbatches += 1
        return self.microbatches == self.steps and self.flush()

    def flush(self):
        if not self.microbatches:
            return False
        flat = self.packed()
        dist.all_reduce(flat.clone(), group=self.group)
        return self.update(flat)

    def packed(self):
        dtype = torch.promote_types(self.parameters[0].dtype, torch.float32)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        rest = torch.tensor([*(p.grad is not None for p in self.parameters), self.samples], dtype=dtype)
        return torch.cat([*(part.reshape(-1).to(dtype) for part in parts), rest])

    def update(self, flat):
        sizes = [p.numel() for p in self.parameters]
        mean = flat[: sum(sizes)].div_(flat[-1])
        norm = mean.norm().item()
        if math.isfinite(norm):
            if self.max_norm is not None:
                mean.mul_(min(1.0, self.max_norm / (norm + 1e-6)))
            for p, part, share in zip(self.parameters, mean.split(sizes), flat[sum(sizes) :].tolist(), strict=False):
                p.grad = part.view(p.shape).to(p.dtype) if share else None
            self.optimizer.step()
        self.clear()
        return math.isfinite(norm)
