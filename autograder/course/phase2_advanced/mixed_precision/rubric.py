"""Hidden rubric of mixed_precision: 25 points, 12 for scaler and masters alone and 13 for steps that combine them.

A step is compared with torch in float32, in one process, with all ranks' samples. Gathering the batch would give the
right values too: so there are enough samples for gradients to be small beside them, and ranks may exchange only as many
bytes as gradients take. Where a number must be exact, the model is one weight and its samples are powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase2_advanced.mixed_precision.scenarios import history, mastered, one_weight, unscaled
from labkit.trace import SIGNAL_BYTES, Event, Kind

FEATURES, CLASSES = 5, 3
ROWS = 400
"""Number of samples of the net for each unit of a share."""
TINY, HUGE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
CLOSE = {"float16": 0.05, "bfloat16": 0.1, "float32": 1e-3}
"""Tolerance of masters against float32's weights after a few steps, relative to the distance that these moved."""
FORBIDDEN = {"torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.nn.parallel.DistributedDataParallel"}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""

Batch = tuple[Tensor, Tensor]


# What runs on the ranks -----------------------------------------------------------------------------------------------


def optimizer_of(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam's step is not linear in the gradient; momentum is a state that a skipped step must not change."""
    import torch

    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.05, eps=0.01)
    return torch.optim.SGD(parameters, lr=0.25, momentum=0.5)


def net(hidden: int, features: int = 5) -> nn.Module:
    """A small classifier that also has tied, frozen, unused and sometimes used parameters."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []
            self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, 3)
            self.gain, self.unused = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
            self.again = self.gain
            self.sometimes = nn.Parameter(torch.zeros(hidden))
            self.last.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(x))
            h = torch.tanh(self.first(x) * self.gain) * self.again
            rows = x[:, 0] > 0
            if bool(rows.any()):
                h = torch.where(rows[:, None], h + self.sometimes, h)
            outputs: torch.Tensor = self.last(h)
            return outputs

    return Net()


def trained(
    weights: list[Tensor],
    batches: list[Batch],
    dtype: str = "float16",
    scale: float = 8.0,
    optimizer: str = "sgd",
    max_norm: Any = None,
    kept: str = "",
    interval: int = 2000,
    restored: int = 0,
    group: Any = None,
    mark: Any = None,
    features: int = 5,
) -> Any:
    """On a rank: train the net from `weights`; `mark` is called before each step and after all.

    scale: 0 for no scaler. kept: dtype of the model's weights if it is not `dtype`. After `restored` steps training
    resumes from a checkpoint.
    """
    import torch

    from labkit.exercises import mixed_precision

    def made() -> Any:
        model = net(len(weights[0]), features)
        with torch.no_grad():
            for parameter, values in zip(model.parameters(), weights, strict=True):
                parameter.copy_(values)
        model.to(getattr(torch, kept or dtype))
        inner = optimizer_of(optimizer, list(model.parameters()))
        masters = mixed_precision.MasterWeights(inner)
        return model, inner, masters, mixed_precision.DynamicLossScaler(scale or 1.0, 2.0, 0.5, interval)

    def everything() -> torch.Tensor:
        held = [parameter for entry in inner.param_groups for parameter in entry["params"]]
        state = [
            torch.as_tensor(value) for kept in inner.state.values() for value in kept.values() if value is not None
        ]
        return torch.cat([one.detach().double().flatten() for one in (*model.parameters(), *held, *state)])

    model, inner, masters, scaler = made()
    steps, scales, snapshots = [], [], [everything()]
    seen: list[int] = []
    for number, batch in enumerate(batches):
        if number and number == restored:
            checkpoint = masters.state_dict(), scaler.state_dict()
            model, inner, masters, scaler = made()
            masters.load_state_dict(checkpoint[0])
            scaler.load_state_dict(checkpoint[1])
        if mark is not None:
            mark()
        low = getattr(torch, dtype)
        step = mixed_precision.autocast_step(
            model,
            masters,
            torch.nn.functional.cross_entropy,
            (batch[0], batch[1]),
            scaler if scale else None,
            dtype=low,
            max_norm=max_norm,
            group=group,
        )
        steps.append((step.stepped, float(step.loss)))
        scales.append(scaler.get_scale())
        snapshots.append(everything())
        seen += model.seen
        model.seen = []
    if mark is not None:
        mark()
    held = [parameter.detach() for entry in inner.param_groups for parameter in entry["params"]]
    return {
        "weights": [parameter.detach() for parameter in model.parameters()],
        "held": held,
        "stepped": [step[0] for step in steps],
        "losses": [step[1] for step in steps],
        "scales": scales,
        "snapshots": snapshots,
        "seen": [size for size in seen if size],
    }


def misused(cases: list[str], mark: Any) -> list[str]:
    """On a rank: return the errors for wrong arguments; `mark` is called before each."""
    import torch
    from torch import nn

    from labkit.exercises import mixed_precision

    model, other, half = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).half()
    own, foreign, low = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other, half))
    step, loss_fn, batch = mixed_precision.autocast_step, nn.functional.mse_loss, (torch.ones(3, 2), torch.ones(3, 2))
    scaler = mixed_precision.DynamicLossScaler()
    half.weight.grad = torch.ones_like(half.weight)
    wrong = {
        "dtype": lambda: step(model, own, loss_fn, batch, scaler, dtype=torch.int8),
        "batch": lambda: step(model, own, loss_fn, (batch[0], torch.ones(2, 2)), scaler),
        "optimizer": lambda: step(model, foreign, loss_fn, batch, scaler),
        "MasterWeights": lambda: step(half, low, loss_fn, batch, scaler),
        "max_norm": lambda: step(model, own, loss_fn, batch, scaler, max_norm=0.0),
        "float16": lambda: scaler.unscale_([half.weight]),
        "growth_interval": lambda: mixed_precision.DynamicLossScaler(growth_interval=0),
        "backoff_factor": lambda: mixed_precision.DynamicLossScaler(backoff_factor=1.5),
    }
    said = []
    for case in cases:
        mark()
        try:
            wrong[case]()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


# Reference ------------------------------------------------------------------------------------------------------------


def scales_of(settings: Sequence[float], interval: int, overflows: Sequence[bool]) -> list[float]:
    """Return the scale after each step, by the contract."""
    scale, growth, backoff = settings
    found, fine = [], 0
    for overflow in overflows:
        fine = 0 if overflow else fine + 1
        if overflow:
            scale = max(scale * backoff, TINY)
        elif fine == interval:
            scale, fine = scale * growth if scale * growth <= HUGE else scale, 0
        found.append(scale)
    return found


def state(draw: Draw, hidden: int = 6, features: int = FEATURES) -> list[Tensor]:
    """Return values of a net's parameters that all dtypes represent exactly."""
    shapes = [tuple(parameter.shape) for parameter in net(hidden, features).parameters()]
    return [draw.tensor(shape) / (16 if features < 100 else 128) for shape in shapes]


def batch(draw: Draw, share: int, features: int = FEATURES) -> Batch:
    """Return `share` times `ROWS` samples of the net. Inputs from -2 to 2 use all their digits.

    Two thirds are of the first class: otherwise the mean gradient of so many would be close to zero.
    """
    generator = torch.Generator().manual_seed(draw.getrandbits(62))
    inputs = 4 * torch.rand((share * ROWS, features), generator=generator) - 2
    return inputs, torch.randint(-CLASSES, CLASSES, (len(inputs),), generator=generator).clamp(min=0)


def whole(
    weights: list[Tensor], batches: Sequence[Sequence[Batch]], optimizer: str, max_norm: float | None
) -> tuple[list[Tensor], Tensor]:
    """Return a net's weights after steps of one process in float32 on the samples of all ranks, `batches[step][rank]`,
    and the losses of each rank's samples in each step, NaN where there are none."""
    model = net(len(weights[0]), batches[0][0][0].shape[1])
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(values)
    taking = optimizer_of(optimizer, list(model.parameters()))
    losses = []
    for parts in batches:
        losses.append([nn.functional.cross_entropy(model(part[0]), part[1]).item() for part in parts])
        inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        taking.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        taking.step()
    return [parameter.detach() for parameter in model.parameters()], torch.tensor(losses)


def like_one_process(
    submission: Submission,
    ranks: Any,
    draw: Draw,
    shares: Sequence[Sequence[int]],
    *,
    dtype: str = "float16",
    optimizer: str = "sgd",
    hidden: int = 6,
    features: int = FEATURES,
    max_norm: float | None = None,
    compare_losses: bool = False,
    **options: Any,
) -> Run:
    """Train the net on ranks with `shares[step][rank]` samples each; expect the result of one process in float32."""
    weights = state(draw, hidden, features)
    batches = [[batch(draw, size, features) for size in sizes] for sizes in shares]
    options |= {"optimizer": optimizer, "max_norm": max_norm, "features": features}
    given = [Args(weights, [parts[r] for parts in batches], dtype, **options) for r in range(len(shares[0]))]
    run: Run = ranks.call(submission.used_by(trained, net, optimizer_of), given)
    wanted, losses = whole(weights, batches, optimizer, max_norm)
    way = torch.cat([(after - before).flatten() for after, before in zip(wanted, weights, strict=True)])
    kept = options.get("kept") or dtype
    for rank, value in enumerate(run.values):
        expect(value["stepped"], f"steps taken on rank {rank}").equals([True] * len(shares))
        expect([seen.shape for seen in value["held"]], "shapes of masters").equals([after.shape for after in wanted])
        gaps = [(seen.float() - after).flatten() for seen, after in zip(value["held"], wanted, strict=True)]
        off = float(torch.cat(gaps).norm() / way.norm())
        hint = "each rank's part of the gradient, by its samples, and what happens to it on its way"
        told = f"they are off by {off:.2g} of the way that float32's have gone"
        expect(off <= CLOSE[dtype], f"masters in {dtype} beside float32", look_at=hint).holds(told)
        for seen, low in zip(value["held"], value["weights"], strict=True):
            expect(str(low.dtype), "dtype of a weight").equals(f"torch.{kept}")
            expect(low, "a weight, its master rounded").equals(seen.to(low.dtype))
        kinds = {str(seen.dtype) for seen in value["held"][:-1]}
        expect(kinds, "dtypes of what the optimizer works on").equals({"torch.float32"})
        sizes = [len(parts[rank][1]) for parts in batches if len(parts[rank][1])]
        expect(value["seen"], f"samples that the model saw on rank {rank}").equals(sizes)
        if compare_losses:
            close = torch.tensor(value["losses"]).isclose(losses[:, rank], CLOSE[dtype], CLOSE[dtype], equal_nan=True)
            told = f"{value['losses']} instead of {losses[:, rank].tolist()}"
            expect(bool(close.all()), f"losses on rank {rank}, not scaled", look_at="StepResult.loss").holds(told)
    only_gradients(run, len(shares), weights)
    return run


def only_gradients(run: Run, steps: int, weights: Sequence[Tensor]) -> None:
    """Check that in each step ranks exchanged no more bytes than gradients in float32, in both directions. The rank
    itself reports what the model saw. Each tensor may be sent separately, with its own flag."""
    once = sum(tensor.numel() * 4 + 2 * (4 + SIGNAL_BYTES) for tensor in weights)
    hint = "each rank computes with its own samples, and only gradients travel"
    told = run.trace.bytes_told()
    expect(told, "bytes that ranks told each other", look_at=hint, unit="bytes").at_most(
        2 * once * len(run.values) * steps
    )


def by_step(run: Run, rank: int) -> list[list[Event]]:
    """Return the messages and collectives of `rank` between its marks."""
    steps: list[list[Event]] = []
    for event in run.trace.of(rank):
        if event.kind is Kind.COMPUTE and event.operation == "step":
            steps.append([])
        elif steps and event.kind in (Kind.COLLECTIVE, Kind.SEND):
            steps[-1].append(event)
    return steps


# The scaler and the masters -------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=2,
    title="the scale's history",
    look_at="update: when counting begins anew, and where the scale must stop",
)
def scale_history(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    call = submission.used_by(history)
    for _ in range(2):
        interval = draw.randrange(3, 6)
        settings = [2.0 ** draw.randrange(0, 20), draw.choice([2.0, 3.0, 1.5]), draw.choice([0.5, 0.25, 0.3])]
        # an interrupted streak, two complete ones in a row, then random ones
        fixed = [0] * (interval - 1) + [1] + [0] * (2 * interval) + [0, 1, 1]
        overflows = [bool(one) for one in fixed] + [draw.random() < 0.2 for _ in range(25)]
        (scales,) = ranks(1).call(call, [Args(settings, interval, overflows)]).values
        wanted = torch.tensor(scales_of(settings, interval, overflows), dtype=torch.float64)
        for step, (seen, right) in enumerate(zip(scales, wanted.tolist(), strict=True)):
            expect(float(seen), f"scale after step {step}").close_to(right, rel=1e-5)
    for start, overflow in ((2.0**126, False), (2.0**-124, True)):
        (scales,) = ranks(1).call(call, [Args([start, 2.0, 0.5], 1, [overflow] * 6)]).values
        expect([float(one) for one in scales], "scale at the end of float32").equals(
            scales_of([start, 2.0, 0.5], 1, [overflow] * 6)
        )


@check(
    points=2,
    todo=1,
    title="unscale_: gradients, and what is not finite",
    look_at="unscale_: each gradient over the scale; True if `finite` is False",
)
def unscale(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    scale = 2.0 ** draw.randrange(1, 12)
    call = submission.used_by(unscaled)
    kinds = (torch.float32, torch.bfloat16, torch.float64)
    plain = [None, *(draw.tensor((3, draw.randrange(2, 6)), kind) for kind in kinds), torch.full((4,), 1e30), None]
    plain.append(torch.full((5,), -2e38))
    (found,) = ranks(1).call(call, [Args(scale, plain)]).values
    expect(found[0], "what it returns for finite gradients, some of them above 1e30").equals(False)
    for seen, before in zip(found[1], plain, strict=True):
        if before is None:
            expect(seen is None, "None stays None").holds("a parameter without gradient has one now")
        else:
            expect(seen, "a gradient over the scale").close_to(before / scale, rel=1e-6)
    for odd in (math.inf, -math.inf, math.nan):
        values = [draw.tensor((3, 4), kind) for kind in kinds]
        values[draw.randrange(3)][draw.randrange(3), draw.randrange(4)] = odd
        (found,) = ranks(1).call(call, [Args(scale, values)]).values
        expect(found[0], f"what it returns when there is {odd}").equals(True)


@check(points=2, todo=1, title="an overflow on one rank is one on all", look_at="what goes to the other ranks")
def one_rank(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    call = submission.used_by(unscaled)
    for odd in (draw.randrange(1, world_size), None, 0):
        values: list[list[Any]] = [draw.tensors(1 + rank, 3) for rank in range(world_size)]
        values[(odd or 0) - 1] = [None, None]  # a rank without any gradient
        if odd is not None:
            values[odd][-1][1] = draw.choice([math.inf, math.nan])
        run = ranks(world_size).call(call, [Args(16.0, value) for value in values])
        expect([value[0] for value in run.values], f"what unscale_ says on {world_size} ranks").equals(
            [odd is not None] * world_size
        )
    order = draw.sample(range(5), 5)
    parts = [sorted(order[:2]), sorted(order[2:])]
    mine = {rank: number for number, part in enumerate(parts) for rank in part}
    odd, values = order[0], [draw.tensors(2, 3) for _ in range(5)]
    values[odd][0][0] = math.inf
    run = ranks(5).call(call, [Args(16.0, values[r], group_of(parts[mine[r]])) for r in range(5)])
    expect([value[0] for value in run.values], "what unscale_ says in two groups").equals(
        [mine[r] == mine[odd] for r in range(5)]
    )


@check(
    points=2, todo=1, title="one small collective, however many parameters", look_at="how often ranks talk in unscale_"
)
def one_message(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, count, odd = draw.choice([2, 3]), draw.randrange(10, 20), draw.randrange(2)
    values = [draw.tensors(count, 3) for _ in range(world_size)]
    values[odd][draw.randrange(count)][0] = math.inf
    run = ranks(world_size).call(
        submission.used_by(unscaled), [Args(4.0, value, mark=work("step", 1e-6)) for value in values]
    )
    expect([value[0] for value in run.values], "what unscale_ says").equals([True] * world_size)
    for rank in range(world_size):
        ((*events,),) = by_step(run, rank)
        expect(len(events), f"messages and collectives of rank {rank} for {count} gradients").equals(1)
        expect(events[0].nbytes, "bytes of that collective", unit="bytes").at_most(16)


@check(
    points=2,
    todo=3,
    title="masters: many small updates",
    look_at="MasterWeights: what is in param_groups, what take_gradients gives each master, what step copies back",
)
def masters(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for optimizer, options, rates, low in (
        ("SGD", {"momentum": 0.5}, [0.25, 0.1], torch.float16),
        ("Adam", {"eps": 0.01}, [0.05, 0.1], torch.bfloat16),
    ):
        kinds = [low, low, torch.float32, low]
        weights = [1 + draw.tensor(4).abs().to(kind) / 8 for kind in kinds]
        frozen, small = 3, 2.0**-13 if low == torch.float16 else 1.0
        steps = [[draw.tensor(4).abs().to(kind) * small for kind in kinds[:3]] for _ in range(24)]
        steps[draw.randrange(3, 9)][1] = steps[draw.randrange(12, 20)][0] = None  # type: ignore[call-overload]  # no gradient
        given = [Args(weights, frozen, [[*step, None] for step in steps], optimizer, options, rates)]
        (found,) = ranks(1).call(submission.used_by(mastered), given).values
        copies = [nn.Parameter(weight.float()) for weight in weights]
        groups = [{"params": copies[:2], "lr": rates[0]}, {"params": copies[2:], "lr": rates[1]}]
        taking = getattr(torch.optim, optimizer)(groups, **options)
        for step in steps:
            for copy, gradient in zip(copies, [*step, None], strict=True):
                copy.grad = None if gradient is None else gradient.float()
            taking.step()
        for number, (copy, kind) in enumerate(zip(copies, kinds, strict=True)):
            wanted = copy.detach()
            expect(found["held"][number].float(), "what the optimizer works on").close_to(wanted, rel=1e-5)
            expect(found["weights"][number], "a weight of the model").close_to(wanted.to(kind), rel=0.02)
        expect(found["own"], "is it the model's own: 16 bits, 16 bits, float32, frozen").equals(
            [False, False, True, True]
        )
        expect(set(found["kept"]), "dtypes of the optimizer's state").equals({"torch.float32"})


@check(
    points=1,
    todo=4,
    title="a restored run goes on as it was",
    look_at="`update` counts in `_steps_without_overflow`; all masters are in `self.pairs`",
)
def restored(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    interval = draw.choice([3, 4])
    overflows = [False] * (2 * interval)
    given = [Args([8.0, 2.0, 0.5], interval, overflows, interval - 1)]
    (scales,) = ranks(1).call(submission.used_by(history), given).values
    expect(scales, "scale after each step").equals(scales_of([8.0, 2.0, 0.5], interval, overflows))
    weights, batches = state(draw), [[batch(draw, 3)] for _ in range(4)]
    call = submission.used_by(trained, net, optimizer_of)
    (straight,), (broken,) = (
        ranks(1).call(call, [Args(weights, [parts[0] for parts in batches], restored=after)]).values for after in (0, 2)
    )
    expect(broken["snapshots"][-1], "weights, masters and momentum in the end").equals(straight["snapshots"][-1])


# Steps ----------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=4,
    title="gradients below float16 arrive",
    look_at="where the loss is scaled, and in which dtype unscaled",
)
def underflow(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    exponent = draw.randrange(27, 31)
    batches = [torch.full((2,), draw.choice([1.0, 2.0])) for _ in range(2)]
    given = [Args(4.0, batches, scale=2.0**16, factor=2.0**-exponent)] * 2
    run = ranks(2).call(submission.used_by(one_weight), given)
    weight, momentum = 4.0, 0.0
    for samples in batches:
        momentum = momentum * 0.5 + float(samples[0])
        weight -= momentum
    for value in run.values:
        seen = torch.full((1, 1), value["masters"][-1])
        expect(seen, f"a weight after two gradients of about 2**-{exponent}").close_to(
            torch.full((1, 1), weight), rel=1e-3
        )


@check(
    points=3,
    todo=4,
    title="steps are those of float32 in one process",
    look_at="the loss, the gradients' way, the weights",
)
def steps(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    uneven = [draw.sample([1, 2, 3, 5], 3), [0, 4, draw.choice([1, 2])], [2, 2, 2]]
    scale = 2.0 ** draw.randrange(4, 9)
    like_one_process(submission, ranks(3), draw, uneven, scale=scale, interval=2, compare_losses=True)
    like_one_process(submission, ranks(2), draw, [[4, 4], [1, 5]], dtype="bfloat16", scale=0.0)
    like_one_process(submission, ranks(1), draw, [[4], [3]], dtype="float32", optimizer="adam", scale=64.0)
    like_one_process(submission, ranks(1), draw, [[6], [3]], kept="float32", scale=256.0)


@check(
    points=3,
    todo=4,
    title="a skipped step leaves all as it was, on every rank",
    look_at="what a skipped step leaves out",
)
def skip(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 4])
    odd, scale = draw.randrange(world_size), 2.0 ** draw.randrange(3, 6)
    weights = state(draw)
    next(weight for weight in weights if weight.dim() == 2).abs_().add_(0.5)
    parts = [[batch(draw, 3) for _ in range(world_size)] for _ in range(4)]
    parts[2][odd][0][1] = 6e4  # so large that the first layer is infinite in float16, and its gradient NaN
    given = [
        Args(weights, [step[rank] for step in parts], scale=scale, optimizer="adam", interval=2)
        for rank in range(world_size)
    ]
    run = ranks(world_size).call(submission.used_by(trained, net, optimizer_of), given)
    skipped(run.values, [True, True, False, True], [scale, 2 * scale, scale, scale])
    only_gradients(run, len(parts), weights)
    # with a scale of 2 the summed gradient exceeds 65504, but no rank's part does
    one, over = torch.ones(2), torch.full((2,), 0.75 * 65504)
    given = [Args(1.0, [one, over, one], scale=2.0)] * world_size
    run = ranks(world_size).call(submission.used_by(one_weight), given)
    values = [
        {
            "stepped": value["stepped"],
            "scales": value["scale"][1:],
            "snapshots": torch.tensor([value["weights"], value["masters"], value["momentum"]]).t(),
        }
        for value in run.values
    ]
    skipped(values, [True, False, True], [2.0, 1.0, 1.0])
    # in two groups: an overflow in one must not affect the other
    over, pair = torch.full((2,), 65504.0), group_of([0, 2])
    given = [
        Args(1.0, [one, over], scale=2.0, group=group_of([1])) if r == 1
        else Args(1.0, [one, one], scale=2.0, group=pair)
        for r in range(3)
    ]  # fmt: skip
    run = ranks(3).call(submission.used_by(one_weight), given)
    taken = [value["stepped"] for value in run.values]
    expect(taken, "steps taken on ranks 0, 1, 2, of which rank 1 is a group of its own").equals(
        [[True, True], [True, False], [True, True]]
    )


def skipped(values: Sequence[Any], stepped: list[bool], scales: list[float]) -> None:
    """Check that every rank took exactly these steps, with these scales after them."""
    for rank, value in enumerate(values):
        expect(value["stepped"], f"steps taken on rank {rank}").equals(stepped)
        expect([float(one) for one in value["scales"]], f"scale after each step on rank {rank}").equals(scales)
        states = value["snapshots"]
        for before, after, taken in zip(states, states[1:], stepped, strict=False):
            same = before.shape == after.shape and torch.equal(before, after)
            what = "weights, masters and the optimizer's state on rank"
            expect(same is not taken, f"{what} {rank}").holds("they stayed" if taken else "a skipped step changed them")
        expect(bool(states[-1].isfinite().all()), "they are finite").holds("one of them is not finite")


@check(
    points=1, todo=4, title="gradients are clipped as without scaling", look_at="the order of unscaling and clipping"
)
def clip(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for max_norm in (0.05, 1e3):
        like_one_process(submission, ranks(2), draw, [[3, 3], [4, 2]], scale=64.0, max_norm=max_norm)


@check(
    points=1,
    todo=4,
    title="gradients travel in 16 bits, all in one message",
    look_at="autocast_step: `all_reduce_gradients` once, before masters take the gradients",
)
def travel(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    hidden = draw.randrange(40, 60)
    for dtype, size in (("float16", 2), ("bfloat16", 2)):
        run = like_one_process(
            submission, ranks(2), draw, [[3, 2]], dtype=dtype, hidden=hidden, mark=work("step", 1e-6)
        )
        numel = sum(p.numel() for p in net(hidden).parameters()) - CLASSES
        for rank in range(2):
            (events, *_) = by_step(run, rank)
            sent = sum(event.nbytes for event in events)
            expect(len(events), "messages and collectives of a step").at_most(4)
            expect(sent, "bytes of a step's collectives", unit="bytes").at_most(size * numel + 128)


@check(
    points=1,
    todo=4,
    title="bad arguments raise ValueError before any message",
    look_at="what is tested at the beginning",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks(1), draw, [[3]])
    cases = ["dtype", "batch", "optimizer", "MasterWeights", "max_norm", "float16", "growth_interval", "backoff_factor"]
    draw.shuffle(cases)
    run = ranks(2).call(submission.used_by(misused), [Args(cases, work("step", 1e-6))] * 2)
    for rank, said in enumerate(run.values):
        for case, text, events in zip(cases, said, by_step(run, rank), strict=True):
            expect(text.split(":")[0], f"a bad {case} raises").equals("ValueError")
            expect(text, "message").contains(case)
            expect(len(events), "messages and collectives").equals(0)


@check(
    points=2,
    todo=4,
    title="real processes: the same steps, and no more bytes than 16-bit gradients need",
    look_at="what each rank decides by itself, and the dtype in which gradients travel",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    # so many features that a rank's samples take more bytes than the gradients
    world_size, features, hidden = 2, 200, draw.randrange(300, 350)
    shares = [[8, 10], [6, 8]]
    # gradients have norms from 0.02 on, and are divided by a scale of 8: clipping always applies
    run: Any = like_one_process(
        submission, ranks.processes(world_size), draw, shares, hidden=hidden, features=features, max_norm=0.001
    )
    numel = sum(p.numel() for p in net(hidden, features).parameters())
    wanted = len(shares) * 2 * (world_size - 1) * 2 * numel
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        1.1 * wanted
    )
