"""Right: each message has its own tag and is received when needed; each activation comes with its shape and dtype."""

import itertools
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

__all__ = [
    "Action",
    "PipelineParallel",
    "PipelineStage",
    "bubble_fraction",
    "get_pipeline_schedule",
    "gpipe_schedule",
    "interleaved_schedule",
    "most_in_flight",
    "one_f_one_b_schedule",
    "split_into_stages",
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool]


class Action(NamedTuple):
    time: int
    stage: int
    op: str
    microbatch: int
    chunk: int = 0


def split_into_stages(layers, num_stages, costs=None):
    layers = list(layers)
    if not 1 <= num_stages <= len(layers):
        raise ValueError(f"num_stages must be 1 to {len(layers)}, got {num_stages}")
    if costs is None:
        costs = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    if len(costs) != len(layers) or min(costs) < 0:
        raise ValueError(f"costs must be one for each layer, got {costs}")
    # the smallest of all possible stage costs that suffices as a limit for this number of stages
    limits = sorted({sum(costs[i:j]) for i in range(len(costs)) for j in range(i + 1, len(costs) + 1)})
    for limit in limits:
        stages = [[]]
        for number, cost in enumerate(costs):
            full = stages[-1] and sum(costs[i] for i in stages[-1]) + cost > limit
            needed = len(layers) - number <= num_stages - len(stages)
            if full or (stages[-1] and needed):
                stages.append([])
            stages[-1].append(number)
        if len(stages) == num_stages and all(sum(costs[i] for i in stage) <= limit for stage in stages):
            return [nn.Sequential(*(layers[i] for i in stage)) for stage in stages]
    raise AssertionError


def counts(**given):
    for name, value in given.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def gpipe_schedule(stages, microbatches):
    counts(stages=stages, microbatches=microbatches)
    m, p = microbatches, stages
    forwards = [Action(s + k, s, "forward", k) for s in range(p) for k in range(m)]
    return sorted(forwards + [Action(m + 2 * p - 2 - s + k, s, "backward", k) for s in range(p) for k in range(m)])


def one_f_one_b_schedule(stages, microbatches):
    counts(stages=stages, microbatches=microbatches)
    m, p = microbatches, stages
    forwards = [Action(s + k if k < p - s else s + 2 * k, s, "forward", k) for s in range(p) for k in range(m)]
    return sorted(forwards + [Action(2 * p - 1 - s + 2 * k, s, "backward", k) for s in range(p) for k in range(m)])


def interleaved_schedule(stages, chunks, microbatches):
    counts(stages=stages, chunks=chunks, microbatches=microbatches)
    if chunks == 1:
        return one_f_one_b_schedule(stages, microbatches)
    rounds = max(1, microbatches // stages)
    sizes = [microbatches // rounds + (i < microbatches % rounds) for i in range(rounds)]
    ends = list(itertools.accumulate(sizes))
    groups = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    forwards = [(k, c) for group in groups for c in range(chunks) for k in group]
    backwards = [(k, chunks - 1 - c) for k, c in forwards]
    orders = []
    for rank in range(stages):
        warm = 2 * (stages - rank - 1) + (chunks - 1) * sizes[0]
        kinds = ["forward"] * min(warm, len(forwards))
        kinds += ["forward", "backward"] * (len(forwards) - len(kinds)) + ["backward"] * len(kinds)
        fed = {"forward": iter(forwards), "backward": iter(backwards)}
        orders.append([(kind, *next(fed[kind])) for kind in kinds])
    last, done, schedule, time = stages * chunks - 1, {}, [], 0
    while any(orders):
        new = {}
        for rank, order in enumerate(orders):
            if order:
                kind, k, c = order[0]
                index = c * stages + rank
                if kind == "forward":
                    ready = index == 0 or ("forward", index - 1, k) in done
                else:
                    ready = ("forward", index, k) in done and (index == last or ("backward", index + 1, k) in done)
                if ready:
                    order.pop(0)
                    new[kind, index, k] = time
                    schedule.append(Action(time, rank, kind, k, c))
        done |= new
        time += 1
    return schedule


def get_pipeline_schedule(name, stages, microbatches, chunks=1):
    if name == "interleaved":
        return interleaved_schedule(stages, chunks, microbatches)
    if name not in ("gpipe", "1f1b"):
        raise ValueError(f"name must be gpipe, 1f1b or interleaved, got {name!r}")
    if chunks != 1:
        raise ValueError(f"chunks must be 1 with {name}, got {chunks}")
    return (gpipe_schedule if name == "gpipe" else one_f_one_b_schedule)(stages, microbatches)


def bubble_fraction(schedule):
    return 1 - len(schedule) / ((max(a.time for a in schedule) + 1) * len({a.stage for a in schedule}))


def most_in_flight(schedule):
    found = []
    for rank in sorted({a.stage for a in schedule}):
        steps = [1 if a.op == "forward" else -1 for a in schedule if a.stage == rank]
        found.append(max(itertools.accumulate(steps)))
    return found


class PipelineStage:
    def __init__(self, module, index, count, recompute=False):
        if not 0 <= index < count:
            raise ValueError(f"index must be 0 to {count - 1}, got {index}")
        self.module, self.index, self.count, self.kept = module, index, count, {}
        self.recompute, self.first_runs = recompute, {}

    @property
    def in_flight(self):
        return len(self.kept)

    def forward(self, microbatch, inputs, loss_of=None):
        inputs = inputs.detach().requires_grad_(inputs.requires_grad)
        if not self.recompute:
            output = self.run(inputs, loss_of)
            self.kept[microbatch] = inputs, output
            return output.detach().requires_grad_(output.requires_grad)
        # without a graph, which would say whether anything is trained
        trained = inputs.requires_grad or any(parameter.requires_grad for parameter in self.module.parameters())
        self.first_runs[microbatch] = loss_of, torch.get_rng_state(), self.autocast()
        with torch.no_grad():
            output = self.run(inputs, loss_of)
        self.kept[microbatch] = inputs, None
        return output.detach().requires_grad_(trained and output.is_floating_point())

    def run(self, inputs, loss_of):
        output = self.module(inputs)
        return output if loss_of is None else loss_of(output)

    def autocast(self):
        return torch.autocast("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))

    def run_again(self, inputs, loss_of, state, autocast):
        now = torch.get_rng_state()
        torch.set_rng_state(state)
        with autocast:
            output = self.run(inputs, loss_of)
        torch.set_rng_state(now)
        return output

    def backward(self, microbatch, gradient=None):
        inputs, output = self.kept.pop(microbatch)
        if output is None:
            output = self.run_again(inputs, *self.first_runs.pop(microbatch))
        if output.requires_grad:
            output.backward(gradient)
        return inputs.grad


class PipelineParallel:
    def __init__(self, stages, schedule, group=None):
        self.stages, self.group = list(stages), group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.peers = dist.get_process_group_ranks(group)
        self.last = self.size * len(self.stages) - 1
        if [(s.index, s.count) for s in stages] != [
            (i, self.last + 1) for i in range(self.rank, self.last + 1, self.size)
        ]:
            raise ValueError(f"stages do not fit rank {self.rank}, got {[s.index for s in stages]}")
        self.parts = 1 + max((a.microbatch for a in schedule), default=-1)
        when = {(a.op, a.chunk * self.size + a.stage, a.microbatch): a.time for a in schedule}
        if len(when) != len(schedule) or len(when) != 2 * (self.last + 1) * self.parts or not when:
            raise ValueError("schedule must do everything once")
        if len({(a.time, a.stage) for a in schedule}) < len(schedule):
            raise ValueError("schedule must have one action of a rank in a slot")
        for (op, i, k), time in when.items():
            before = [("forward", i - 1, k)] if op == "forward" else [("forward", i, k), ("backward", i + 1, k)]
            if any(when.get(need, -1) >= time for need in before):
                raise ValueError(f"schedule must do what {op} {i} of {k} needs before slot {time}")
        self.mine = [a for a in sorted(schedule) if a.stage == self.rank]

    def forward_backward(self, batch, target, criterion):
        first, last = self.rank == 0, self.rank == self.size - 1
        if first and not isinstance(batch, torch.Tensor):
            raise ValueError(f"batch must be a tensor on the first rank, got {batch!r}")
        if last and not isinstance(target, torch.Tensor):
            raise ValueError(f"target must be a tensor on the last rank, got {target!r}")
        if first and last and len(batch) != len(target):
            raise ValueError(f"target must have as many samples as batch, got {len(target)}")
        if last and not callable(criterion):
            raise ValueError(f"criterion must be a function on the last rank, got {criterion!r}")
        inputs = batch.tensor_split(self.parts) if first else []
        targets = target.tensor_split(self.parts) if last else []
        self.sent, self.here, losses = [], {}, []
        wanted = {}  # whether the next stage's input needs a gradient; which format it has
        for action in self.mine:
            stage, k = self.stages[action.chunk], action.microbatch
            if action.op == "forward":
                x = inputs[k] if stage.index == 0 else self.receive_activation(stage.index, k)
                if stage.index < self.last:
                    y = stage.forward(k, x)
                    self.send_activation(y, stage.index + 1, k)
                    wanted[stage.index, k] = y.requires_grad, y.shape, y.dtype, y.device
                else:
                    n = len(targets[k])

                    def loss_of(y, k=k, n=n):
                        return criterion(y, targets[k]) * n / len(target) if n else 0 * y.sum()

                    losses.append(stage.forward(k, x, loss_of).detach())
            else:
                gradient = None
                if stage.index < self.last:
                    wants, shape, dtype, device = wanted.pop((stage.index, k))
                    if wants:
                        gradient = self.receive("backward", stage.index, k, shape, dtype, device)
                gradient = stage.backward(k, gradient)
                if gradient is not None and stage.index:
                    self.send(gradient, "backward", stage.index - 1, k)
        for work, _ in self.sent:
            work.wait()
        return sum(losses) if losses else None

    def tag(self, op, index, k):
        return 2 * (index * self.parts + k) + (op == "forward")

    def send(self, tensor, op, index, k):
        if self.size == 1:
            self.here[op, index, k] = tensor
        elif tensor.numel():
            tensor = tensor.detach().contiguous()
            self.sent = [(work, kept) for work, kept in self.sent if not work.is_completed()]
            work = dist.isend(tensor, self.peers[index % self.size], self.group, self.tag(op, index, k))
            self.sent.append((work, tensor))

    def receive(self, op, index, k, shape, dtype, device):
        if self.size == 1:
            return self.here.pop((op, index, k))
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if tensor.numel():
            source = self.peers[(index + (1 if op == "backward" else -1)) % self.size]
            dist.recv(tensor, source, self.group, self.tag(op, index, k))
        return tensor

    def send_activation(self, y, index, k):
        if self.size > 1:
            form = [DTYPES.index(y.dtype), y.requires_grad, y.dim(), *y.shape]
            form = torch.tensor(form + [0] * (12 - len(form)), device=y.device)
            work = dist.isend(form, self.peers[index % self.size], self.group, self.tag("form", index, k) + 10_000)
            self.sent.append((work, form))
        self.send(y, "forward", index, k)

    def receive_activation(self, index, k):
        if self.size == 1:
            return self.here.pop(("forward", index, k))
        device = next((p.device for s in self.stages for p in s.module.parameters()), torch.device("cpu"))
        form = torch.empty(12, dtype=torch.int64, device=device)
        dist.recv(form, self.peers[(index - 1) % self.size], self.group, self.tag("form", index, k) + 10_000)
        dtype, wants, dims, *shape = form.tolist()
        x = self.receive("forward", index, k, shape[:dims], DTYPES[dtype], device)
        return x.requires_grad_(bool(wants))
