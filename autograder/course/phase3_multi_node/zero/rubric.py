"""Hidden rubric of zero: 25 points, 11 for values, 14 for traffic, memory, time and states.

The judge trains the same models in one process, so it knows every weight and norm; other ranks than the first begin
with other weights. Traffic is counted in whole models. Time is that of the virtual clock, where each layer's passes
take a known time and nothing else does. Memory is counted on virtual ranks, and confirmed by the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.zero.scenarios import joined, sgd_steps, stack, volume
from labkit.hardware import Link
from labkit.trace import Category, Kind

FORBIDDEN = {
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch.nn.parallel.DistributedDataParallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
MB = 1 << 20
CLOSE = {"float32": 3e-5, "float64": 1e-10}
SECONDS = 0.01
"""Of a layer's forward pass; backward takes twice as long."""
LAYERS = 6
NOISE = 12 * MB
"""Allowance for bytes that the kernel counts for each rank beside its tensors and what torch takes."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def net(kind: str) -> Any:
    """plain: layers of odd sizes. tied: a weight used by two modules, a frozen one, and a layer that is used twice.

    checkpointed: the same, with activations that are computed again, inside of layers and around them.
    """
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    if kind == "plain":
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False), nn.LayerNorm(3), nn.Linear(3, 4))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))

        def forward(self, x: Any) -> Any:
            inner = checkpoint(self.body, x, use_reentrant=False) if kind == "checkpointed" else self.body(x)
            return x + inner

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 5, bias=False)
            self.layers = nn.ModuleList(Layer() for _ in range(3))
            self.last = nn.Linear(5, 5)
            self.last.weight = self.first.weight
            frozen: Any = self.layers[1]
            frozen.body[0].weight.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for number, layer in enumerate(self.layers):
                x = checkpoint(layer, x, use_reentrant=False) if kind == "checkpointed" and number == 2 else layer(x)
            return self.last(self.layers[0](x))

    return Net()


def trained(
    stage: int,
    kind: str,
    weights: list[Tensor],
    batches: list[Tensor],
    norm: float = 0.0,
    groups: int = 1,
    passes: int = 1,
    optimizer: str = "AdamW",
    low_precision: bool = False,
    mark: Any = None,
    saved: Any = None,
    returns_state: bool = False,
    group: Any = None,
    **options: Any,
) -> Any:
    """On a rank: take a step with each batch, sharded; return weights, norms before clipping, and perhaps the state.

    norm: clip to it; 0: do not. groups: of parameters, with other learning rates, stages 1 and 2 only. passes: backward
    passes of each step. mark: called before and after each step, and between backward pass and optimizer.
    """
    import torch

    from labkit.exercises import zero

    mark = mark or (lambda: None)
    model: Any = net(kind).to(weights[0].dtype)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    make = getattr(torch.optim, optimizer)
    owner: Any
    if stage == 3:
        if low_precision:
            options["mixed_precision"] = torch.bfloat16
        owner = model = zero.FullyShardedDataParallel(model, group, **options)
        steps = make(model.parameters(), lr=0.02, weight_decay=0.1)
    else:
        every = list(model.parameters())
        entries = [{"params": every[n::groups], "lr": 0.02 * (n + 1)} for n in range(groups)]
        given: Any = entries if groups > 1 else every
        owner = steps = zero.ZeroOptimizer(given, make, stage, group, lr=0.02, weight_decay=0.1, **options)
    if saved is not None:
        model.load_state_dict(saved[0])
        if stage == 3:
            model.load_optimizer_state_dict(steps, saved[1])
        else:
            steps.load_state_dict(saved[1])
    norms = []
    for batch in batches:
        mark()
        steps.zero_grad()
        for part in batch.chunk(passes):
            outputs = model(part).float() if low_precision else model(part)
            (outputs.square().mean() / passes).backward()
        mark()
        if norm:
            norms.append(owner.clip_grad_norm_(norm).item())
        steps.step()
    mark()
    state = [model.state_dict(), model.optimizer_state_dict(steps) if stage == 3 else steps.state_dict()]
    if stage == 3:
        with model.gather_full_params() as whole:
            found = [parameter.detach().clone() for parameter in whole.parameters()]
    else:
        found = [parameter.detach().clone() for parameter in model.parameters()]
    return {"weights": found, "norms": norms, "state": state if returns_state else None}


def held(
    stage: int, layers: int, size: int, factors: list[float], forward: Any = None, backward: Any = None, **how: Any
) -> Any:
    """On a rank: a step of SGD with momentum for each factor; return one weight of each layer, of this rank's part."""
    import torch

    with torch.device("meta" if stage == 3 else "cpu"):
        model = stack([size] * layers, forward, backward)
    model, _ = sgd_steps(stage, model, factors, momentum=0.5, **how)
    return [[parameter.detach()[0].item() for parameter in model.parameters() if len(parameter) > 1]]


def estimated(cases: list[Any]) -> list[dict[str, float]]:
    """On a rank: estimate memory, of GPUs with 40 GB."""
    from labkit.exercises import zero

    found = []
    for parameters, gpus, stage, sizes, optimizer, params in cases:
        one = zero.estimate_memory(parameters, gpus, stage, tuple(sizes), 40, optimizer, params)
        names = ("baseline_gb", "zero_gb", "reduction_factor", "max_parameters")
        found.append({name: float(one[name]) for name in names})
    return found


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch
    from torch import nn

    from labkit.exercises import zero

    layer = nn.Linear(2, 2)
    tried = {
        "stage": lambda: zero.ZeroOptimizer(layer.parameters(), torch.optim.SGD, 3, lr=1),
        "params": lambda: zero.ZeroOptimizer([layer.weight, layer.weight], torch.optim.SGD, 1, lr=1),
        "module": lambda: zero.FullyShardedDataParallel(nn.Tanh()),
        "num_gpus": lambda: zero.estimate_memory(1e9, 0, 1),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# What must come out ---------------------------------------------------------------------------------------------------


class Alone:
    """Training in one process: the first rank's weights, each rank's batches, weights and norms at the end."""

    def __init__(
        self, draw: Draw, kind: str, ranks: int, steps: int, dtype: str = "float64", norm: float = 0.0,
        groups: int = 1, optimizer: str = "AdamW", passes: int = 1,
    ) -> None:  # fmt: skip
        self.kind, self.ranks, self.dtype = kind, ranks, getattr(torch, dtype)
        self.options = {"norm": norm, "groups": groups, "optimizer": optimizer, "passes": passes}
        generator = torch.Generator().manual_seed(draw.getrandbits(62))
        normal = partial(torch.randn, generator=generator, dtype=self.dtype)
        model: Any = net(kind).to(self.dtype)
        shapes = [parameter.shape for parameter in model.parameters()]
        self.first = [[0.5 * normal(shape) for shape in shapes] for _ in range(ranks)]
        self.batches = [[normal(2 * passes, 5) for _ in range(steps)] for _ in range(ranks)]
        every = list(model.parameters())
        with torch.no_grad():
            for parameter, value in zip(every, self.first[0], strict=True):
                parameter.copy_(value)
        entries = [{"params": every[n::groups], "lr": 0.02 * (n + 1)} for n in range(groups)]
        trainer = getattr(torch.optim, optimizer)(entries, lr=0.02, weight_decay=0.1)
        self.norms: list[float] = []
        for number in range(steps):
            trainer.zero_grad()
            model(torch.cat([mine[number] for mine in self.batches])).square().mean().backward()
            if norm:
                self.norms.append(float(torch.nn.utils.clip_grad_norm_(every, norm)))
            trainer.step()
        self.weights = [parameter.detach() for parameter in every]

    def given(self, stage: int, start: int = 0, stop: int | None = None, **options: Any) -> list[Args]:
        """Return the arguments of each rank, for steps from `start` to `stop`."""
        how = {**self.options, **options}
        return [
            Args(stage, self.kind, self.first[rank], self.batches[rank][start:stop], **how)
            for rank in range(self.ranks)
        ]

    def compare(self, values: Sequence[Any], what: str, rel: float | None = None) -> None:
        """Expect these weights, and norms, on all ranks."""
        close = CLOSE[str(self.dtype).split(".")[1]] if rel is None else rel
        for number, weight in enumerate(self.weights):
            seen = [value["weights"][number] for value in values]
            expect(seen, f"parameter {number} after {what}, {self.kind} model, on {self.ranks} ranks").close_to(
                [weight] * len(seen), rel=close
            )
        for value in values:
            for number, norm in enumerate(self.norms):
                about = f"norm of all gradients before clipping, step {number} of {what}"
                expect(value["norms"][number], about).close_to(norm, rel=max(close, 1e-5))


def go(submission: Submission, ranks: Ranks, given: Sequence[Args | None], **hardware: Any) -> Run:
    return ranks(len(given), **hardware).call(submission.used_by(trained, net), given)


def marks(run: Run, rank: int) -> list[float]:
    return sorted(e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "mark")


def sent(run: Run, rank: int, begin: float, end: float) -> int:
    """Bytes of all collectives, and messages, that begin within a time."""
    ranks = len(run.ranks)
    found = sum(volume(e, ranks) for e in run.trace.collectives(rank) if begin <= e.start < end)
    return found + sum(e.nbytes for e in run.trace.of(rank, Kind.SEND) if begin <= e.start < end)


def most(run: Run, rank: int, begin: float, *categories: Category) -> int:
    """Return the most bytes that a rank held for these purposes, or in all, from a time on."""
    now: dict[Category, int] = dict.fromkeys(Category, 0)
    found = 0
    for sample in run.trace.memory:
        if sample.rank == rank:
            now[sample.category] = sample.nbytes
            if sample.time >= begin:
                found = max(found, sum(now[c] for c in categories or Category))
    return found


def loads(
    submission: Submission, ranks: Ranks, stage: int, world_size: int, steps: int, size: int, draw: Draw,
    layers: int = LAYERS, kernel: bool = False, hardware: dict[str, Any] | None = None, **options: Any,
) -> tuple[Run, int]:  # fmt: skip
    """Train large layers with drawn factors; check weights. Returns the run, and the kernel's bytes of all ranks."""
    factors = [[float(draw.randrange(1, 9)) for _ in range(steps)] for _ in range(world_size)]
    given = [Args(stage, layers, size, factors[rank], **options) for rank in range(world_size)]
    function = submission.used_by(held, stack, sgd_steps)
    some = ranks(world_size, **({"account": True} if not kernel else {}), **(hardware or {}))
    run, nbytes = some.measured(function, given) if kernel else (some.call(function, given), 0)
    weight, momentum = 0.0, 0.0
    for step in range(steps):
        momentum = 0.5 * momentum + sum(mine[step] for mine in factors) / world_size
        weight -= momentum
    for value in run.values:
        what = f"weights after {steps} steps of SGD with momentum on {world_size} ranks, stage {stage}"
        expect(torch.tensor(value[0]), what).close_to(torch.full((layers,), weight), rel=1e-5)
    return run, nbytes


# Estimates and padding ------------------------------------------------------------------------------------------------


@check(points=1, todo=1, title="memory of each stage, and the largest model that fits", look_at="estimate_memory")
def estimate(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [
        (draw.uniform(1e9, 99e9), draw.randrange(2, 65), stage, [*draw.sample([2, 4, 6, 8, 12], 3)], optimizer, params)
        for stage in range(4)
        for optimizer, params in ((False, False), (True, False), (True, True))
    ]
    (seen,) = ranks(1).call(submission.used_by(estimated), [Args(cases)]).values
    for case, found in zip(cases, seen, strict=True):
        parameters, gpus, stage, sizes, optimizer, params = case
        kept = [
            0.0 if away and stage >= first else nbytes / (gpus if stage >= first else 1)
            for nbytes, first, away in zip(sizes, (3, 2, 1), (params, optimizer, optimizer), strict=True)
        ]
        none = not sum(kept)
        wanted = {
            "baseline_gb": parameters * sum(sizes) / 1e9,
            "zero_gb": parameters * sum(kept) / 1e9,
            "reduction_factor": float("inf") if none else sum(sizes) / sum(kept),
            "max_parameters": float("inf") if none else 40e9 / sum(kept),
        }
        what = (
            f"{parameters / 1e9:.3f}e9 parameters of {sizes} bytes, {gpus} GPUs, stage {stage}, {optimizer}, {params}"
        )
        for name, value in wanted.items():
            one = expect(found[name], f"{name} of {what}")
            if none and name.startswith(("reduction", "max")):
                one.equals(value)
            else:
                one.close_to(value, rel=1e-6)


@check(points=1, todo=2, title="joined, with as few zeros as make equal parts", look_at="join")
def padding(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = []
    for count in (1, 2, 3):
        dtype = draw.choice([torch.float32, torch.float64])
        cases.append(([draw.tensor(draw.randrange(1, 9), dtype) for _ in range(count)], draw.choice([1, 2, 3, 5, 8])))
    (seen,) = ranks(1).call(submission.used_by(joined), [Args(cases)]).values
    for (tensors, world_size), found in zip(cases, seen, strict=True):
        missing = -sum(map(len, tensors)) % world_size
        wanted = torch.cat([*tensors, torch.zeros(missing, dtype=tensors[0].dtype)])
        expect(found, f"{[len(tensor) for tensor in tensors]} elements for {world_size} ranks").equals(wanted)


# Stages 1 and 2 -------------------------------------------------------------------------------------------------------


@check(points=3, todo=3, title="stages 1 and 2: weights of one process", look_at="reduce, wait_for_gradients and step")
def optimizer_values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [(1, "plain", 20, 1, 25.0), (2, "tied", 20, 1, 1e-4), (2, "plain", 3, 2, 2e-4), (1, "tied", 3, 1, 1e-4)]
    for number, (stage, kind, steps, groups, cap) in enumerate(cases):
        world_size = 1 if number == 3 else draw.choice([2, 3, 4, 5])
        # AdamW hardly sees that all gradients are too large, in float32 not at all
        optimizer, passes = ("SGD", 2) if number == 2 else ("AdamW", 1)
        alone = Alone(draw, kind, world_size, steps, draw.choice([*CLOSE]), 0.0, groups, optimizer, passes)
        run = go(submission, ranks, alone.given(stage, bucket_cap_mb=cap))
        alone.compare(run.values, f"{steps} steps of {optimizer}, stage {stage}, buckets of {cap} MiB")


@check(points=2, todo=3, title="gradients are clipped by the norm of all of them", look_at="clip_grad_norm_")
def clipping(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for stage in (1, 2, 3):
        world_size = draw.choice([2, 3, 4])
        norm = draw.uniform(0.02, 0.1)
        alone = Alone(draw, "plain", world_size, 3, norm=norm, optimizer="SGD")
        options: dict[str, Any] = {} if stage == 3 else {"bucket_cap_mb": draw.choice([1e-4, 25])}
        run = go(submission, ranks, alone.given(stage, **options))
        alone.compare(run.values, f"3 steps of SGD, stage {stage}, gradients clipped to {norm:.3f}")


@check(
    points=2,
    todo=3,
    title="stages 1 and 2 send two models a step; in stage 2 gradients leave during the backward pass",
    look_at="gradient_arrived, finish_gradients and step",
)
def optimizer_traffic(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, size = draw.choice([2, 4]), 4 * draw.randrange(500, 900)
    for stage in (1, 2):
        options: dict[str, Any] = {
            "bucket_cap_mb": 4e-3,
            "mark": work("mark", 1e-6),
            "backward": work("layer", SECONDS),
        }
        link = Link("fast", 1.0, 1e-6, "a bucket takes a part of a layer's time")
        run, _ = loads(submission, ranks, stage, world_size, 2, size, draw, hardware={"inter_node": link}, **options)
        whole = 4 * size * LAYERS
        for rank in range(world_size):
            times = marks(run, rank)
            begin, backward, after, end = times[4:8]
            what = f"of rank {rank} of {world_size} in a step of stage {stage}, whole models"
            expect(sent(run, rank, begin, end) / whole, f"traffic {what}, at most 2").at_most(2.03)
            early = sent(run, rank, backward, after) / whole
            if stage == 1:
                expect(early, f"traffic {what}, before `step`").at_most(0.0)
            else:
                expect(early, f"traffic {what}, before `step`").at_least(0.99)
                first = min(e.start for e in run.trace.collectives(rank) if backward <= e.start)
                what = f"seconds from the beginning of a backward pass of {LAYERS} layers to the first bucket"
                expect(first - backward, what, unit="seconds").at_most(1.5 * SECONDS)
                what = f"seconds of that pass on rank {rank}: {LAYERS} layers of {SECONDS} s, and messages meanwhile"
                expect(after - backward, what, unit="seconds").at_most(LAYERS * SECONDS * 1.03)


@check(
    points=2,
    todo=3,
    title="stages 1 and 2 hold shards of the state, stage 2 shards of gradients",
    look_at="what is whole, and how long",
)
def optimizer_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, size = 4, draw.randrange(20_000, 24_000) // 4 * 4
    whole = LAYERS * 4 * size
    for stage in (1, 2):
        options: dict[str, Any] = {"bucket_cap_mb": 0.01, "mark": work("mark", 1e-6)}
        run, _ = loads(submission, ranks, stage, world_size, 2, size, draw, **options)
        for rank in range(world_size):
            begin = marks(run, rank)[4]
            what = f"of rank {rank} of {world_size}, stage {stage}, as shares of the {LAYERS} equal layers"
            expect(most(run, rank, begin, Category.PARAMETER) / whole, f"parameters {what}").at_most(1.02)
            # beside the shards a layer's whole gradient, as a temporary one
            state = most(run, rank, begin, Category.OPTIMIZER) / whole
            expect(state, f"optimizer state {what}").at_most(1 / world_size + 1.4 / LAYERS)
            gradients = most(run, rank, begin, Category.GRADIENT, Category.COMMUNICATION) / whole
            most_of_them = 1.02 + 1.3 / LAYERS if stage == 1 else 1 / world_size + 3.3 / LAYERS
            expect(gradients, f"gradients and messages {what}").at_most(most_of_them)


# Stage 3 --------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=4,
    title="stage 3: weights of one process",
    look_at="gather, free and after_backward",
)
def module_values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases: list[tuple[str, int, dict[str, Any]]] = [
        ("plain", 20, {}),
        ("tied", 3, {"prefetch": False}),
        ("checkpointed", 3, {}),
        ("tied", 3, {"cpu_offload": True}),
    ]
    for number, (kind, steps, options) in enumerate(cases):
        world_size = 1 if number == 3 else draw.choice([2, 3, 4, 5])
        optimizer, passes = ("SGD", 2) if number == 1 else ("AdamW", 1)
        alone = Alone(draw, kind, world_size, steps, draw.choice([*CLOSE]), optimizer=optimizer, passes=passes)
        run = go(submission, ranks, alone.given(3, **options))
        alone.compare(run.values, f"{steps} steps of {optimizer}, stage 3, {options}")


@check(
    points=2, todo=4, title="groups, replicas of shards, and 16 bits", look_at="wait_for_gradients: replicas, hybrid"
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    alone = Alone(draw, "tied", 2, 3)
    one, two = alone.given(3)
    for arguments in (one, two):
        arguments.kwargs["group"] = group_of([0, 2])
    run = go(submission, ranks, [one, None, two])
    alone.compare([run.values[0], run.values[2]], "3 steps, in a group of ranks 0 and 2")
    alone = Alone(draw, "plain", 4, 3)
    given = alone.given(3)
    for rank, arguments in enumerate(given):
        near, far = ([0, 1], [2, 3])[rank // 2], ([0, 2], [1, 3])[rank % 2]
        arguments.kwargs.update(group=group_of(near), hybrid=group_of(far))
    run = go(submission, ranks, given)
    alone.compare(run.values, "3 steps, in shards over two ranks, averaged over two such groups")
    alone = Alone(draw, "plain", 3, 3, "float32", optimizer="SGD")
    run = go(submission, ranks, alone.given(3, low_precision=True, mark=work("mark", 1e-6)))
    alone.compare(run.values, "3 steps of SGD in bfloat16", rel=0.02)
    begin, end = marks(run, 0)[:2]
    numel = sum(weight.numel() for weight in alone.weights)
    what = "bytes of a forward and backward pass in bfloat16, for each parameter, at most 3 * 2 and padding"
    expect(sent(run, 0, begin, end) / numel, what, unit="bytes").at_most(6 * 1.15)


@check(
    points=2,
    todo=4,
    title="stage 3 sends three models a step, and has two units at a time",
    look_at="free, and what `following` is used for",
)
def module_traffic_and_units(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, size = draw.choice([2, 4]), 4 * draw.randrange(5000, 9000)
    run, _ = loads(submission, ranks, 3, world_size, 2, size, draw, layers=8, mark=work("mark", 1e-6))
    layer, whole = 4 * size, 4 * size * 8
    for rank in range(world_size):
        begin, middle, _, end = marks(run, rank)[4:8]
        what = f"of rank {rank} of {world_size}, whole models"
        expect(sent(run, rank, begin, middle) / whole, f"traffic of a forward pass {what}").at_most(1.02)
        traffic = sent(run, rank, begin, end) / whole
        expect(traffic, f"traffic of a step {what}, at most 3").at_most(3.03)
        expect(traffic, f"traffic of a step {what}; weights are gathered again, backward").at_least(2.7)
        shard = layer * 8 / world_size
        parameters = most(run, rank, begin, Category.PARAMETER)
        what = f"layers that are whole at a time on rank {rank}, beside its shards"
        expect((parameters - shard) / layer, what).at_most(2.1)
        # shards of parameters, gradients and momentum; two layers; a gradient, in one piece and in pieces
        everything = most(run, rank, begin)
        what = f"memory of rank {rank} of {world_size}, as a share of the 8 equal layers"
        expect(everything / whole, what).at_most(3 / world_size + 5.3 / 8)


@check(
    points=3,
    todo=4,
    title="the next unit arrives while one computes, forward and backward",
    look_at="gather: what is started, and what is waited for; reduce does not wait for itself",
)
def prefetch(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, size = draw.choice([2, 4]), 4 * draw.randrange(2000, 3000)
    # a layer is gathered in 60 % of the time of its forward pass
    rate = 4 * size * (world_size - 1) / world_size / (0.6 * SECONDS) / 1e9
    options: dict[str, Any] = {
        "forward": work("forward", SECONDS),
        "backward": work("backward", 2 * SECONDS),
        "mark": work("mark", 1e-6),
    }
    link = {"inter_node": Link("slow", rate, 1e-6, "a layer takes a part of its forward pass")}
    run, _ = loads(submission, ranks, 3, world_size, 2, size, draw, hardware=link, **options)
    for rank in range(world_size):
        begin, middle, after, _ = marks(run, rank)[4:8]
        what = f"seconds forward on rank {rank}: {LAYERS} layers of {SECONDS} s, each gathered in 0.006 s"
        expect(middle - begin, what, unit="seconds").at_most(LAYERS * SECONDS + 0.013)
        what = f"seconds backward on rank {rank}: {LAYERS} layers of {2 * SECONDS} s, gathered and reduced in 0.006 s"
        expect(after - middle, what, unit="seconds").at_most(LAYERS * 2 * SECONDS + 0.02)
    options["prefetch"] = False
    run, _ = loads(submission, ranks, 3, world_size, 1, size, draw, hardware=link, **options)
    begin, middle = marks(run, 0)[:2]
    what = f"seconds forward with prefetch=False: {LAYERS} times 0.01 s, and 0.006 s before each"
    expect(middle - begin, what, unit="seconds").at_least(LAYERS * 1.5 * SECONDS)


@check(points=2, todo=4, title="memory of stages 2 and 3, by the kernel's count", look_at="free", needs={"memory"})
def memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, layers = 4, 8
    for stage in (2, 3):
        size = draw.randrange(650_000, 700_000) // 4 * 4
        options: dict[str, Any] = {} if stage == 3 else {"bucket_cap_mb": 1}
        _, nbytes = loads(submission, ranks, stage, world_size, 1, size, draw, layers=layers, kernel=True, **options)
        # parameters, gradients and momentum; beside shards a few layers
        shares = 3 / world_size * layers + 6 if stage == 3 else (1 + 2 / world_size) * layers + 2
        what = f"memory of each of {world_size} ranks, stage {stage}, for {layers} layers of {4 * size / 1e6:.1f} MB"
        expect(nbytes / world_size, what, unit="bytes").at_most(shares * 4 * size + NOISE)


@check(points=1, todo=4, title="a state goes on at another world size", look_at="join: zeros belong to the end")
def states(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for stage in (2, 3):
        before, after = draw.sample([2, 3, 4], 2)
        alone, saved = Alone(draw, "plain", before * after, 4), None
        for part in range(2):
            # the same whole batches, on fewer ranks
            world_size = (before, after)[part]
            per_rank = before * after // world_size
            batches = [
                [torch.cat([mine[s] for mine in alone.batches[r * per_rank : (r + 1) * per_rank]]) for s in range(4)]
                for r in range(world_size)
            ]
            given = [
                Args(stage, "plain", alone.first[r], batches[r][2 * part : 2 * part + 2], returns_state=True)
                for r in range(world_size)
            ]
            if part:
                for arguments in given:
                    arguments.kwargs["saved"] = saved
                ranks.renew()
            run = go(submission, ranks, given)
            saved = run.values[0]["state"]
        what = f"2 steps on {before} ranks and 2 on {after}, stage {stage}"
        for number, weight in enumerate(alone.weights):
            expect([value["weights"][number] for value in run.values], f"parameter {number} after {what}").close_to(
                [weight] * after, rel=CLOSE["float64"]
            )


@check(points=1, todo=4, title="bad arguments raise ValueError, before anything is sent; real processes", look_at="")
def arguments_and_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = ["stage", "params", "module", "num_gpus"]
    run = ranks(2).call(submission.used_by(misused), [Args(cases)] * 2)
    for value in run.values:
        for name, text in zip(cases, value, strict=True):
            expect(text, f"what a wrong `{name}` raises").contains(f"ValueError: {name} must")
    expect(len(run.trace.collectives()), "collectives that were called").equals(0)
    for stage in (2, 3):
        alone = Alone(draw, "tied", 3, 2, "float32")
        run = ranks.processes(3).call(submission.used_by(trained, net), alone.given(stage))
        alone.compare(run.values, f"2 steps of AdamW on real processes, stage {stage}")
