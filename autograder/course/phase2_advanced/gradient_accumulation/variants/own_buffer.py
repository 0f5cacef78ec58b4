"""Right: hooks move each gradient into a flat buffer as soon as it is ready, so nothing is packed at the end."""

import math

import torch
import torch.distributed as dist

__all__ = ["GradientAccumulator"]


class GradientAccumulator:
    def __init__(self, model, optimizer, steps, max_norm=None, group=None):
        known = {id(p) for p in model.parameters()}
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps must be above 0, got {steps!r}")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be above 0, got {max_norm!r}")
        if any(id(p) not in known for entry in optimizer.param_groups for p in entry["params"]):
            raise ValueError("optimizer must hold parameters of model only")
        self.model, self.optimizer, self.steps = model, optimizer, steps
        self.limit, self.group = max_norm, group
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        sizes = [p.numel() for p in self.parameters]
        dtype = torch.promote_types(self.parameters[0].dtype, torch.float32)
        self.buffer = torch.zeros(1 + len(sizes) + sum(sizes), dtype=dtype)
        self.samples, self.present, self.gradient = self.buffer.split([1, len(sizes), sum(sizes)])
        self.parts = [part.view(p.shape) for part, p in zip(self.gradient.split(sizes), self.parameters, strict=True)]
        for index, p in enumerate(self.parameters):
            p.register_post_accumulate_grad_hook(lambda p, index=index: self.take(index, p))
        self.left = steps

    @torch.no_grad()
    def take(self, index, parameter):
        self.parts[index].add_(parameter.grad)
        self.present[index] = 1
        parameter.grad = None

    def backward(self, loss, samples=1):
        if samples < 0:
            raise ValueError(f"samples must be 0 or more, got {samples}")
        if loss.numel() != 1:
            raise ValueError(f"loss must be one number, got shape {tuple(loss.shape)}")
        if samples > 0:
            loss.backward(gradient=torch.full_like(loss, samples))
            self.samples += samples
        return loss.detach()

    def step(self):
        self.left -= 1
        if self.left:
            return False
        return self.flush()

    @torch.no_grad()
    def flush(self):
        if self.left == self.steps:
            return False
        dist.all_reduce(self.buffer, group=self.group)
        taken = self.samples.item() > 0
        if taken:
            self.gradient.div_(self.samples)
            norm = torch.linalg.vector_norm(self.gradient)
            taken = math.isfinite(norm)
        if taken:
            if self.limit is not None:
                self.gradient.mul_((self.limit / (norm + 1e-6)).clamp(max=1.0))
            for p, part, share in zip(self.parameters, self.parts, self.present.tolist(), strict=True):
                p.grad = part.to(p.dtype) if share else None
            self.optimizer.step()
        for p in self.parameters:
            p.grad = None
        self.buffer.zero_()
        self.left = self.steps
        return taken
