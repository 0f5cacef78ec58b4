"""Right: sums the overflow flags, concatenates gradients, and replaces the optimizer's lists of parameters."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["DynamicLossScaler", "MasterWeights", "StepResult", "autocast_step"]


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        if not 0 < init_scale < math.inf or not 1 < growth_factor < math.inf or not 0 < backoff_factor < 1:
            raise ValueError(
                f"bad init_scale, growth_factor or backoff_factor: {init_scale, growth_factor, backoff_factor}"
            )
        if not isinstance(growth_interval, int) or growth_interval < 1:
            raise ValueError(f"growth_interval must be 1 or more, got {growth_interval}")
        self.value, self.fine = init_scale, 0
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return loss.float() * self.value

    def unscale_(self, parameters, group=None):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if any(g.dtype == torch.float16 for g in gradients):
            raise ValueError("parameters have gradients in torch.float16")
        found = torch.zeros(1)
        for gradient in gradients:
            found += float(not gradient.isfinite().all())
            gradient.div_(self.value)
        dist.all_reduce(found, group=group)
        return found.item() > 0

    def update(self, found_inf):
        if found_inf:
            self.value = max(self.value * self.backoff, torch.finfo(torch.float32).tiny)
            self.fine = 0
            return
        self.fine += 1
        if self.fine >= self.interval:
            if self.value * self.growth <= torch.finfo(torch.float32).max:
                self.value *= self.growth
            self.fine = 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


class MasterWeights:
    def __init__(self, optimizer):
        self.optimizer, self.pairs = optimizer, []
        for entry in optimizer.param_groups:
            params = []
            for p in entry["params"]:
                if p.requires_grad and p.dtype in (torch.float16, torch.bfloat16):
                    master = nn.Parameter(p.detach().float())
                    self.pairs.append((p, master))
                    p = master
                params.append(p)
            entry["params"] = params

    @property
    def parameters(self):
        return [p for entry in self.optimizer.param_groups for p in entry["params"]]

    def take_gradients(self):
        for p, master in self.pairs:
            master.grad = None if p.grad is None else p.grad.to(master.dtype)
            p.grad = None

    def step(self):
        self.optimizer.step()
        for p, master in self.pairs:
            p.detach().copy_(master.detach())

    def zero_grad(self):
        for p in (*self.parameters, *(p for p, _ in self.pairs)):
            p.grad = None

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict(), "masters": [master.detach() for _, master in self.pairs]}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["optimizer"])
        for (p, master), saved in zip(self.pairs, state["masters"], strict=True):
            master.detach().copy_(saved)
            p.detach().copy_(saved)


@dataclass(frozen=True)
class StepResult:
    loss: torch.Tensor
    stepped: bool


def autocast_step(model, optimizer, loss_fn, batch, scaler=None, *, dtype=torch.float16, max_norm=None, group=None):
    inputs, targets = batch
    check(model, optimizer, inputs, targets, scaler, dtype, max_norm)
    trained = [p for p in model.parameters() if p.requires_grad]
    has_masters = isinstance(optimizer, MasterWeights)
    updated = optimizer.parameters if has_masters else trained
    model.zero_grad()
    total = torch.tensor([float(len(targets))])
    dist.all_reduce(total, group=group)
    loss, found_inf = torch.tensor(math.nan), False
    if len(targets):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = loss_fn(model(inputs), targets)
        scaled = scaler.scale(loss) if scaler else loss.float()
        (scaled * (len(targets) / total[0])).backward()
    add_up(trained, group)
    if has_masters:
        optimizer.take_gradients()
    if scaler:
        found_inf = scaler.unscale_(updated, group)
        scaler.update(found_inf)
    if not found_inf:
        if max_norm is not None:
            nn.utils.clip_grad_norm_(updated, max_norm)
        optimizer.step()
    optimizer.zero_grad()
    return StepResult(loss.detach(), not found_inf)


def add_up(trained, group):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        if alike := [p for p in trained if p.dtype == dtype]:
            flags = torch.tensor([p.grad is not None for p in alike], dtype=dtype)
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
            flat = torch.cat([flags, *(part.flatten() for part in parts)])
            dist.all_reduce(flat, group=group)
            flags, *sums = flat.split([len(alike), *(p.numel() for p in alike)])
            for p, part, there in zip(alike, sums, flags.tolist(), strict=True):
                p.grad = part.view_as(p) if there else None


def check(model, optimizer, inputs, targets, scaler, dtype, max_norm):
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"dtype must be a floating one, got {dtype}")
    if len(inputs) != len(targets):
        raise ValueError(f"batch must have as many inputs as targets, got {len(inputs)} and {len(targets)}")
    if max_norm is not None and max_norm <= 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    if isinstance(optimizer, MasterWeights):
        return
    mine = set(model.parameters())
    if any(p not in mine for entry in optimizer.param_groups for p in entry["params"]):
        raise ValueError("optimizer must hold parameters of model only")
    if scaler and any(p.dtype == torch.float16 for p in mine):
        raise ValueError("optimizer must be MasterWeights for parameters in torch.float16")
