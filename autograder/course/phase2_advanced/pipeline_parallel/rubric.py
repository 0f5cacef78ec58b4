"""Hidden rubric of pipeline_parallel: 25 points, 12 for stages, schedules and values, 13 for odd cases and costs.

Loss and gradients are compared with those of one process. A rank gets only its own stages' weights, and in most runs
the first activation that leaves the first stage is altered in transit: so correct results must come from the ranks'
messages. The trace shows when a rank computes: its stages' forwards and backwards are work of a known cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autograder.rubric_support.messages import own_messages
from labkit.checks import (
    Alteration,
    Args,
    Draw,
    Inputs,
    ProcessRun,
    Ranks,
    Reference,
    Submission,
    check,
    expect,
    group_of,
    work,
)
from labkit.clusters import Run
from labkit.course.phase2_advanced.pipeline_parallel.scenarios import drawn, lowest_cost, split
from labkit.trace import Kind

WIDTH = 6
CLOSE = 1e-4
"""Tolerance for float32, a few layers; parts of a batch may be summed in any order."""
LINK = "ib-hdr"
FORWARD, BACKWARD = 0.001, 0.002
"""Seconds of a whole rank's layers, for one microbatch."""
HOARD = 16 << 20
"""Bytes of a rank's activations of all microbatches, where memory is measured."""
NOISE = 10 << 20
"""Allowance for bytes that the kernel counts for each rank beside its tensors and what torch takes."""
DEPTH = 8
"""Tensors of an input's size that a stage's backward pass needs, where recomputation is measured."""
FORM = 256
"""Bytes that a message may have beside its tensor, for its metadata."""
FORBIDDEN = {
    "torch.distributed.pipelining",
    "torch.distributed.pipelining.Schedule1F1B",
    "torch.distributed.pipelining.ScheduleGPipe",
    "torch.distributed.pipelining.ScheduleInterleaved1F1B",
    "torch.distributed.pipelining.PipelineStage",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def layer(weight: Tensor, trained: bool, forward: Any, backward: Any, depth: int) -> Any:
    """One stage: tanh of a product, or rows of `weight` for integers. `forward` and `backward` charge their time.

    depth: a sine is applied this many times less one, each of which keeps its input for the backward pass.
    """
    import torch
    from torch import nn

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            if forward is not None:
                forward()
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            if backward is not None:
                backward()
            return gradient

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight, requires_grad=trained)
            self.seen: list[int] = []

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(inputs))
            rows = not inputs.is_floating_point()
            found = nn.functional.embedding(inputs, self.weight) if rows else torch.tanh(inputs @ self.weight)
            for _ in range(depth - 1):
                found = found.sin()
            marked: torch.Tensor = Marked.apply(found)  # type: ignore[no-untyped-call]
            return marked

    return Layer()


def piped(
    weights: list[Tensor],
    frozen: list[bool],
    schedule: list[list[Any]] | tuple[str, int],
    batch: Tensor | None,
    target: Tensor | None,
    group: Any = None,
    forward: Any = None,
    backward: Any = None,
    recompute: bool = False,
    depth: int = 1,
) -> Any:
    """On a rank: run one batch forward and backward through stages with these weights, by a schedule's rows or name."""
    import torch.distributed as dist

    from labkit.exercises import pipeline_parallel as pp

    rank, ranks, chunks = dist.get_rank(group), dist.get_world_size(group), len(weights)
    modules = [layer(w, not f, forward, backward, depth) for w, f in zip(weights, frozen, strict=True)]
    count = ranks * chunks
    options = {"recompute": True} if recompute else {}
    stages = [pp.PipelineStage(module, rank + ranks * c, count, **options) for c, module in enumerate(modules)]
    if isinstance(schedule[0], str):
        plan = pp.get_pipeline_schedule(schedule[0], ranks, schedule[1], chunks)
    else:
        plan = [pp.Action(*row) for row in schedule]
    loss = pp.PipelineParallel(stages, plan, group).forward_backward(
        batch, target, lambda output, wanted: (output - wanted).square().mean()
    )
    return {
        "loss": loss,
        "gradients": [module.weight.grad for module in modules],
        "seen": [module.seen for module in modules],
        "kept": [stage.in_flight for stage in stages],
    }


def drawing(order: list[int], seed: int, inputs: list[Tensor], weight: Tensor, lowered: bool) -> Any:
    """On a rank: run microbatches through a stage that recomputes and has dropout, and back in `order`.

    lowered: the forwards run under autocast, the backwards do not. The module adds a number, which changes in between.
    Returns outputs, gradients, random numbers drawn after each backward, and the dtype in which each run computed.
    """
    from contextlib import nullcontext

    import torch
    from torch import nn

    from labkit.exercises import pipeline_parallel as pp

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight)
            self.shift = 0.0
            self.dtypes: list[str] = []

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            product = tensor @ self.weight
            self.dtypes.append(str(product.dtype))
            return nn.functional.dropout(torch.tanh(product + self.shift), 0.4)

    module = Dropping()
    stage = pp.PipelineStage(module, 1, 3, recompute=True)
    torch.manual_seed(seed)
    outputs, gradients, drawn = [], [], []
    for k, given in enumerate(inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16) if lowered else nullcontext():
            outputs.append(stage.forward(k, given.clone().requires_grad_()))
    # what runs again sees it; what was kept from the first run does not
    module.shift = 0.5
    for k in order:
        gradients.append(stage.backward(k, torch.ones_like(outputs[k])))
        drawn.append(torch.rand(3))
    return {
        "outputs": [output.detach() for output in outputs],
        "gradients": gradients,
        "weight": module.weight.grad,
        "drawn": drawn,
        "kept": stage.in_flight,
        "dtypes": module.dtypes,
    }


def misused(cases: list[str]) -> list[str]:
    """On a rank of two: return the error for each of these wrong arguments."""
    import torch.distributed as dist
    from torch import nn

    from labkit.exercises import pipeline_parallel as pp

    rank = dist.get_rank()
    own, other = (pp.PipelineStage(nn.Linear(2, 2), index, 2) for index in (rank, 1 - rank))
    rows = [list(row) for row in pp.get_pipeline_schedule("1f1b", 2, 2)]
    plan, late = ([pp.Action(sign * row[0], *row[1:]) for row in rows] for sign in (1, -1))

    def misuse(case: str) -> None:
        if case == "name":
            pp.get_pipeline_schedule("zigzag", 2, 2)
        elif case == "microbatches":
            pp.get_pipeline_schedule("1f1b", 2, 0)
        elif case == "num_stages":
            pp.split_into_stages([nn.Linear(2, 2)], 2)
        elif case == "costs":
            pp.split_into_stages([nn.Linear(2, 2), nn.Linear(2, 2)], 2, [1.0])
        elif case == "stages":
            pp.PipelineParallel([other], plan)
        elif case == "schedule":
            pp.PipelineParallel([own], late if rank else plan[1:])
        else:
            pp.PipelineParallel([own], plan).forward_backward(None, None, lambda output, wanted: output.mean())

    found = []
    for case in cases:
        try:
            misuse(case)
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# Reference ------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One action of a stage in a schedule, counted over all ranks and chunks."""

    op: str
    stage: int
    microbatch: int


def needs(step: Step, count: int) -> list[Step]:
    if step.op == "forward":
        return [Step("forward", step.stage - 1, step.microbatch)] if step.stage else []
    after = [Step("backward", step.stage + 1, step.microbatch)] if step.stage < count - 1 else []
    return [Step("forward", step.stage, step.microbatch), *after]


def at_random(draw: Draw, ranks: int, chunks: int, microbatches: int) -> list[list[Any]]:
    """Return rows of a random valid schedule, in which ranks may also idle."""
    count, slot, done = ranks * chunks, 0, dict[Step, int]()
    left = {Step(op, g, k) for op in ("forward", "backward") for g in range(count) for k in range(microbatches)}
    rows: list[list[Any]] = []
    while left:
        for rank in range(ranks):
            own = sorted(step for step in left if step.stage % ranks == rank)
            ready = [step for step in own if all(done.get(need, slot) < slot for need in needs(step, count))]
            if ready and draw.random() < 0.8:
                step = draw.choice(ready)
                left.remove(step)
                done[step] = slot
                rows.append([slot, rank, step.op, step.microbatch, step.stage // ranks])
        slot += 1
    return rows


def drawn_alone(order: list[int], seed: int, inputs: list[Tensor], weight: Tensor, lowered: bool) -> dict[str, Any]:
    """What `drawing` returns if it recomputes, without stages: each microbatch's gradients by plain autograd."""
    own = weight.clone().requires_grad_()
    outputs, gradients, states = [], list[Tensor | None](), []
    before = torch.get_rng_state()
    torch.manual_seed(seed)

    def run(tensor: Tensor, shift: float) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lowered):
            return torch.nn.functional.dropout(torch.tanh(tensor @ own + shift), 0.4)

    for tensor in inputs:
        states.append(torch.get_rng_state())
        outputs.append(run(tensor, 0.0).detach())
    now = torch.get_rng_state()
    for k in order:
        torch.set_rng_state(states[k])
        given = inputs[k].clone().requires_grad_()
        output = run(given, 0.5)
        output.backward(torch.ones_like(output))
        gradients.append(given.grad)
    torch.set_rng_state(now)
    drawn = [torch.rand(3) for _ in order]
    torch.set_rng_state(before)
    return {"outputs": outputs, "gradients": gradients, "weight": own.grad, "drawn": drawn}


class Whole:
    """Result of one process: the loss, and a gradient or None for each stage.

    altered: rows that get 1 added after the first stage.
    """

    def __init__(
        self, weights: list[Tensor], frozen: list[bool], batch: Tensor, target: Tensor, altered: int, depth: int = 1
    ) -> None:
        own = [w.clone().requires_grad_(not f) for w, f in zip(weights, frozen, strict=True)]
        found = batch
        for number, weight in enumerate(own):
            found = torch.tanh(found @ weight) if found.is_floating_point() else weight[found]
            for _ in range(depth - 1):
                found = found.sin()
            if number == 0 and altered:
                found = found + (torch.arange(len(found)) < altered).to(found.dtype)[:, None]
        loss = (found - target).square().mean()
        if loss.requires_grad:
            loss.backward()
        self.loss, self.gradients = loss.detach(), [weight.grad for weight in own]


def like_one_process(
    submission: Submission,
    ranks: Ranks,
    draw: Draw,
    world_size: int,
    microbatches: int,
    samples: int,
    name: str = "1f1b",
    chunks: int = 1,
    *,
    schedule: list[list[Any]] | None = None,
    dtype: torch.dtype = torch.float32,
    frozen: Sequence[int] = (),
    tokens: bool = False,
    members: list[int] | None = None,
    width: int = WIDTH,
    altered: bool = True,
    recompute: bool = False,
    depth: int = 1,
    rel: float = CLOSE,
    call: Callable[[Reference, Inputs], Run] | None = None,
    **hardware: Any,
) -> Run:
    """Run one batch by this schedule on the ranks, and expect the loss and the gradients of one process.

    call: makes the run; by default virtual ranks of this hardware do.
    """
    inside = members or list(range(world_size))
    size = len(inside)
    count = size * chunks
    weights = [draw.tensor((width, width)).to(dtype) / 16 for _ in range(count)]
    still = [number in frozen for number in range(count)]
    batch = draw.tensor((samples, width)).to(dtype) / 4
    if tokens:
        batch = torch.tensor([draw.randrange(width) for _ in range(samples)])
    target = draw.tensor((samples, width)).to(dtype) / 8
    altered = altered and size > 1
    given: list[Args | None] = [None] * world_size
    for place, rank in enumerate(inside):
        given[rank] = Args(
            weights[place::size],
            still[place::size],
            schedule or (name, microbatches),
            batch if place == 0 else None,
            target if place == size - 1 else None,
            group=group_of(inside) if members else None,
            forward=work("forward", FORWARD / chunks),
            backward=work("backward", BACKWARD / chunks),
            recompute=recompute,
            depth=depth,
        )
    changed: dict[str, Any] = {"alteration": Alteration(inside[0], dtype)} if altered else {}
    run = (call or ranks(world_size, **changed, **hardware).call)(submission.used_by(piped, layer), given)
    first = min((row for row in schedule if row[1] == 0), default=[0] * 5)[3] if schedule else 0
    parts = torch.arange(samples).tensor_split(microbatches)
    if altered and first:
        # the altered rows are not the first ones
        order = torch.cat([parts[first], *parts[:first], *parts[first + 1 :]])
        batch, target = batch[order], target[order]
    whole = Whole(weights, still, batch, target, len(parts[first]) if altered else 0, depth)
    compared(run, whole, inside, rel)
    return run


def compared(run: Run, whole: Whole, inside: Sequence[int], rel: float) -> None:
    size = len(inside)
    for number, wanted in enumerate(whole.gradients):
        seen = run.values[inside[number % size]]["gradients"][number // size]
        what = f"gradient of stage {number} of {len(whole.gradients)}"
        if wanted is None:
            expect(seen, what).equals(None)
        else:
            expect(seen, what).close_to(wanted, rel=rel)
    for place, rank in enumerate(inside):
        loss = run.values[rank]["loss"]
        if place == size - 1:
            expect(loss, "loss on the rank of the last stage").close_to(whole.loss, rel=rel)
        else:
            expect(loss, f"loss on rank {rank}, which has not the last stage").equals(None)
        expect(run.values[rank]["kept"], "microbatches kept afterwards").equals([0] * (len(whole.gradients) // size))


def in_flight(run: Run, rank: int) -> int:
    """Return the maximum number of microbatches between forward and backward, by the trace."""
    waiting = most = 0
    for event in sorted(run.trace.of(rank, Kind.COMPUTE), key=lambda event: event.start):
        waiting += {"forward": 1, "backward": -1}.get(event.operation, 0)
        most = max(most, waiting)
    return most


def schedules(submission: Submission, ranks: Ranks, cases: list[tuple[str, int, int, int]]) -> list[list[list[Any]]]:
    """Return the submission's schedules after checking that each is valid: name, ranks, microbatches, chunks."""
    (found,) = ranks(1).call(submission.used_by(drawn), [Args(cases)]).values
    for rows, (name, stages, microbatches, chunks) in zip(found, cases, strict=True):
        what = f"{name} of {stages} ranks with {chunks} chunks, {microbatches} microbatches: "
        plain = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 5 for row in rows)
        expect(plain, what + "a list of actions").holds("something else")
        done = {Step(op, chunk * stages + stage, k): time for time, stage, op, k, chunk in rows}
        count = stages * chunks
        wanted = {Step(op, g, k) for op in ("forward", "backward") for g in range(count) for k in range(microbatches)}
        expect(set(done) == wanted and len(rows) == len(wanted), what + "each action once").holds("too few or many")
        expect(len({(row[0], row[1]) for row in rows}), what + "actions, each rank's in slots of their own").equals(
            len(rows)
        )
        late = [step for step, time in done.items() if any(done[need] >= time for need in needs(step, count))]
        expect(len(late), what + "actions before what they need").equals(0)
        expect(min(row[0] for row in rows), what + "first slot").equals(0)
    return list(found)


def waiting(rows: list[list[Any]], rank: int) -> int:
    found = most = 0
    for row in sorted(rows):
        if row[1] == rank:
            found += 1 if row[2] == "forward" else -1
            most = max(most, found)
    return most


def slots(rows: list[list[Any]]) -> int:
    return int(max(row[0] for row in rows)) + 1


# Stages and schedules -------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=1,
    title="stages: in no other split does the most expensive stage cost less",
    look_at="split_into_stages: all places for a cut",
)
def balanced(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    # in the first case, neither stages of equal length nor filling up from the left is optimal
    given = [[1.0, 1.0, 1.0, 1.0, 9.0, 5.0], [float(draw.choice([0, 1, 2, 5, 9])) for _ in range(8)]]
    given += [[float(draw.randrange(1, 30)) for _ in range(draw.choice([7, 9]))] for _ in range(2)]
    sizes = [[draw.choice([1, 2, 8]), draw.choice([1, 3, 9])] for _ in range(5)] + [[30, 30]]
    told = [*((costs, None) for costs in given), ([float(a * b + b) for a, b in sizes], sizes)]
    cases = [(costs, n, linear) for costs, linear in told for n in (2, draw.choice([3, 4]))]
    (found,) = ranks(1).call(submission.used_by(split), [Args(cases)]).values
    for stages, (costs, num_stages, _) in zip(found, cases, strict=True):
        expect([number for stage in stages for number in stage], "all layers").equals(list(range(len(costs))))
        expect([bool(stage) for stage in stages], "stages with layers").equals([True] * num_stages)
        highest = max(sum(costs[number] for number in stage) for stage in stages)
        expect(highest, "cost of the most expensive stage").close_to(lowest_cost(costs, num_stages))


@check(
    points=2,
    todo=2,
    title="1F1B: as long as GPipe, and no more in flight than there are ranks to come",
    look_at="_one_f_one_b: how many forwards come before the first backward",
)
def one_f_one_b(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    many = draw.choice([4, 5, 6])
    sizes = [(many, draw.randrange(2 * many, 20)), (3, draw.choice([4, 5, 7])), (4, 2), (1, 3), (2, 1)]
    for rows, (p, m) in zip(schedules(submission, ranks, [("1f1b", p, m, 1) for p, m in sizes]), sizes, strict=True):
        expect(slots(rows), f"1F1B of {p} ranks, {m} microbatches: slots").equals(2 * (m + p - 1))
        most = [waiting(rows, rank) for rank in range(p)]
        expect(most, f"1F1B of {p} ranks, {m} microbatches: in flight").equals([min(p - r, m) for r in range(p)])


@check(
    points=2,
    todo=2,
    title="interleaved: the bubble, divided by the chunks",
    look_at="_one_f_one_b: the warm-up with chunks",
)
def interleaved(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [(draw.choice([3, 4]), draw.choice([2, 3]), 2), (2, 3, 4), (4, 2, 1)]
    cases = [("interleaved", p, p * m, v) for p, v, m in sizes] + [("interleaved", 3, draw.choice([2, 4, 5]), 2)]
    for rows, (p, v, m) in zip(schedules(submission, ranks, cases), sizes, strict=False):
        what = f"interleaved, {p} ranks with {v} chunks, {p * m} microbatches"
        expect(slots(rows) - 2 * v * p * m, f"{what}: idle slots of a rank").equals(2 * (p - 1))
        most = 2 * (p - 1) + (v - 1) * p + 1
        expect(max(waiting(rows, rank) for rank in range(p)), f"{what}: in flight").at_most(most)


@check(
    points=1,
    todo=5,
    title="GPipe and 1F1B add up the microbatches' gradients in their order: the same bits",
    look_at="gpipe_schedule: the first microbatch's backward is first; forward_backward: the order of `self.slots`",
)
def order(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, m = 3, draw.choice([6, 7, 8])
    found = schedules(submission, ranks, [(name, p, m, 1) for name in ("gpipe", "1f1b")])
    for name, rows in zip(("GPipe", "1F1B"), found, strict=True):
        seen = [[row[3] for row in sorted(rows) if row[1:3] == [rank, "backward"]] for rank in range(p)]
        expect(seen, f"{name}: microbatches in the order of each rank's backwards").equals([list(range(m))] * p)
    gradients, state = [], draw.getstate()
    for name in ("gpipe", "1f1b"):
        draw.setstate(state)  # the same weights and samples
        run = like_one_process(submission, ranks, draw, p, m, 3 * m, name, width=24)
        gradients.append([gradient for value in run.values for gradient in value["gradients"]])
    expect(gradients[1], "gradients of each stage with 1F1B, to the bit those with GPipe").equals(gradients[0])


# Values ---------------------------------------------------------------------------------------------------------------


@check(
    points=2, todo=5, title="loss and gradients are those of one process", look_at="forward_backward, action by action"
)
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, m = draw.choice([3, 5]), draw.choice([5, 6])
    like_one_process(submission, ranks, draw, p, m, m * draw.choice([1, 2, 3]))
    like_one_process(submission, ranks, draw, 2, 3, 6, "gpipe")
    like_one_process(submission, ranks, draw, 1, 3, 6)


@check(
    points=1,
    todo=5,
    title="microbatches that are unequal, few or empty",
    look_at="the share of a microbatch in the loss; the mean of no sample",
)
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    m = draw.choice([3, 4, 5])
    like_one_process(submission, ranks, draw, 3, m, 2 * m + draw.randrange(1, m))
    like_one_process(submission, ranks, draw, 2, 5, draw.choice([2, 3]))


@check(
    points=1, todo=5, title="fewer microbatches than ranks", look_at="the warm-up, where there is less to do than that"
)
def few(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, 4, draw.choice([2, 3]), 6)


@check(
    points=1,
    todo=5,
    title="several stages on each rank",
    look_at="forward_backward: `self.stages[action.chunk]`; first and last are stages, not ranks",
)
def chunks(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, 2, 4, 8, "interleaved", draw.choice([2, 3]))
    like_one_process(submission, ranks, draw, 3, 3, 6, "interleaved", 2)


@check(
    points=1,
    todo=5,
    title="any schedule that is possible",
    look_at="forward_backward: run `self.slots` in order, and assume nothing else",
)
def any_schedule(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for p, v, m in ((3, 1, 4), (2, 2, 3)):
        rows = at_random(draw, p, v, m)
        run = like_one_process(submission, ranks, draw, p, m, 2 * m, chunks=v, schedule=rows)
        for rank in range(p):
            wanted = [row[2] for row in sorted(rows) if row[1] == rank]
            events = sorted(run.trace.of(rank, Kind.COMPUTE), key=lambda event: event.start)
            seen = [event.operation for event in events if event.operation in ("forward", "backward")]
            expect(seen, f"what rank {rank} computed, in order").equals(wanted)


@check(
    points=1,
    todo=5,
    title="recompute: gradients of a second run with the first one's random numbers and autocast",
    look_at="PipelineStage: what the second run starts from, and what it leaves to those that draw after it",
)
def recompute(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, 3, 4, 8, draw.choice(["gpipe", "1f1b"]), recompute=True)
    like_one_process(submission, ranks, draw, 2, 3, 6, "interleaved", 2, recompute=True)
    like_one_process(submission, ranks, draw, 3, 3, 6, frozen=[0], recompute=True)
    like_one_process(submission, ranks, draw, 2, 2, 4, frozen=[0, 1], recompute=True)
    like_one_process(submission, ranks, draw, 3, 3, 6, tokens=True, recompute=True)
    backwards = draw.sample(range(4), 4)
    inputs, weight, seed = draw.tensors(4, (5, 8)), draw.tensor((8, 8)) / 16, draw.getrandbits(31)
    for lowered in (False, True):
        (seen,) = ranks(1).call(submission.used_by(drawing), [Args(backwards, seed, inputs, weight, lowered)]).values
        wanted = drawn_alone(backwards, seed, inputs, weight, lowered)
        what = f"a stage with dropout{' under autocast' if lowered else ''}, four microbatches: "
        rel = 0.05 if lowered else CLOSE
        expect(len(seen["dtypes"]), what + "times that it has run").equals(8)
        expect(seen["kept"], what + "microbatches kept afterwards").equals(0)
        dtype = "torch.bfloat16" if lowered else "torch.float32"
        expect(seen["dtypes"], what + "dtypes in which it has run").equals([dtype] * 8)
        for place, k in enumerate(backwards):
            of = f"{what}microbatch {k}, backward number {place + 1}: "
            expect(seen["outputs"][k], of + "its output").close_to(wanted["outputs"][k], rel=rel)
            expect(seen["gradients"][place], of + "gradient of its inputs").close_to(
                wanted["gradients"][place], rel=rel
            )
            random = of + "random numbers drawn next, as if it had run once"
            expect(seen["drawn"][place], random).equals(wanted["drawn"][place])
        expect(seen["weight"], what + "gradient of the weight").close_to(wanted["weight"], rel=rel)


@check(points=1, todo=5, title="stages that are not trained", look_at="who wants a gradient, and who sends one")
def frozen(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    run = like_one_process(submission, ranks, draw, 3, 3, 6, frozen=[0], width=64)
    sent = "bytes sent by rank 1, whose gradients nobody wants"
    expect(run.trace.bytes_sent(1), sent, unit="bytes").at_most(6 * 64 * 4 + 3 * FORM)
    like_one_process(submission, ranks, draw, 3, 3, 6, frozen=draw.choice([[1], [2], [0, 1], [1, 2]]))
    like_one_process(submission, ranks, draw, 2, 2, 4, frozen=[0, 1])


@check(
    points=1,
    todo=5,
    title="whole numbers go in, and every dtype is kept",
    look_at="forward_backward: pass on what `messages` returns as it is",
)
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, 3, 3, 6, tokens=True)
    like_one_process(submission, ranks, draw, 2, 3, 6, dtype=torch.float64, rel=1e-12)
    like_one_process(submission, ranks, draw, 2, 2, 4, dtype=torch.bfloat16, rel=0.05)


@check(
    points=1,
    todo=5,
    title="a group of some of the ranks",
    look_at="forward_backward: stages and `messages` know the group; ask for no other rank",
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, 4, 3, 6, members=draw.choice([[1, 2, 3], [0, 2, 3]]))


@check(
    points=1,
    todo=5,
    title="bad arguments raise ValueError before any message",
    look_at="the given lines at the beginning must stay",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, 2, 2, 4)
    cases = ["name", "microbatches", "num_stages", "costs", "stages", "schedule", "batch"]
    run = ranks(2).call(submission.used_by(misused), [Args(cases)] * 2)
    for rank, found in enumerate(run.values):
        for case, raised in zip(cases, found, strict=True):
            expect(raised, f"bad {case}: what is raised").contains("ValueError")
            named = "target" if case == "batch" and rank else case
            expect(raised, f"bad {case}: the message").contains(named)
    expect(sum(run.trace.messages_sent(rank) for rank in range(2)), "messages sent").equals(0)


# Cost -----------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=5,
    title="1F1B keeps no more activations for more microbatches",
    look_at="what is kept of a microbatch, and how long",
    needs={"memory"},
)
def released(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, rows, width = 3, draw.randrange(500, 700), 256
    activation = 4 * rows * width
    many = math.ceil(HOARD / activation)
    peaks, measured = [], []

    def call(function: Reference, inputs: Inputs) -> Run:
        run, nbytes = ranks(p, account=True, inter_node=LINK).measured(function, inputs)
        measured.append(nbytes)
        return run

    for m in (p + 1, many):
        run = like_one_process(submission, ranks, draw, p, m, m * rows, width=width, altered=False, call=call)
        for rank in range(p):
            expect(in_flight(run, rank), f"microbatches in flight on rank {rank}").at_most(p - rank)
            neighbours = 1 if rank in (0, p - 1) else 2
            # additional data that is sent is held elsewhere
            most = neighbours * m * activation + 2 * m * FORM
            expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank}", unit="bytes").at_most(most)
        peaks.append([run.trace.peak_memory(rank) for rank in range(p)])
    for rank, (few, most) in enumerate(zip(*peaks, strict=True)):
        what = f"bytes that rank {rank} holds at most, for {many} microbatches where {few} were enough for {p + 1}"
        expect(most, what).at_most(few + 1.5 * activation)
    what = f"activations that a rank holds at most on average, of {many} microbatches, by the kernel's count"
    expect((measured[-1] / p - NOISE) / activation, what).at_most(2 * p + 4)


@check(
    points=1,
    todo=5,
    title="recompute: m inputs and one microbatch's activations, for one forward more",
    look_at="PipelineStage.forward: what is kept with recompute; how often the module runs",
    needs={"memory"},
)
def recompute_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, rows, width = 2, draw.randrange(500, 700), 256
    inputs = 4 * rows * width
    many = math.ceil(4 * HOARD / (DEPTH * inputs))
    measured = []

    def call(function: Reference, given: Inputs) -> Run:
        run, nbytes = ranks(p, account=True, inter_node=LINK).measured(function, given)
        measured.append(nbytes)
        return run

    few, peaks = 2, []
    for m in (few, many):
        run = like_one_process(
            submission, ranks, draw, p, m, m * rows, "gpipe", width=width, altered=False, recompute=True, depth=DEPTH,
            call=call,
        )  # fmt: skip
        seen = [len(value["seen"][0]) for value in run.values]
        expect(seen, f"times that each rank's stage runs, for {m} microbatches").equals([2 * m] * p)
        most = 1.03 * (m + p - 1) * (2 * FORWARD + BACKWARD)
        expect(run.trace.seconds, f"{m} microbatches, each twice forward: seconds", unit="seconds").at_most(most)
        for rank in range(p):
            sent = m * inputs + 2 * m * FORM
            expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank}", unit="bytes").at_most(sent)
        peaks.append([run.trace.peak_memory(rank) for rank in range(p)])
    for rank, (least, most) in enumerate(zip(*peaks, strict=True)):
        what = f"bytes that rank {rank} holds at most beyond those for {few}, for {many} inputs of {inputs} bytes"
        expect(most - least, what, unit="bytes").at_most(1.5 * (many - few) * inputs + 2 * inputs)
    what = f"inputs that a rank holds at most on average, of {many}, by the kernel's count"
    expect((measured[-1] / p - NOISE) / inputs, what).at_most(2 * many + 3 * DEPTH)


@check(points=2, todo=5, title="the bubble is no larger than it must be", look_at="the timeline: who waits for whom")
def bubble(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, m = draw.choice([3, 5]), draw.choice([6, 8])
    for name, v, microbatches in (("1f1b", 1, m), ("gpipe", 1, m), ("interleaved", 2, 2 * p)):
        run = like_one_process(submission, ranks, draw, p, microbatches, 2 * microbatches, name, v, inter_node=LINK)
        own_messages(run)
        computing = microbatches * (FORWARD + BACKWARD)
        idle = (p - 1) * (FORWARD + BACKWARD) / v
        what = f"{name}, {p} ranks with {v} chunks, {microbatches} microbatches: seconds"
        expect(run.trace.seconds, what, unit="seconds").at_most(1.03 * (computing + idle))


@check(
    points=1,
    todo=5,
    title="activations forth, gradients back, between neighbours",
    look_at="what you give to `messages.exchange`",
)
def traffic(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, m, rows, width = 4, draw.choice([4, 5]), draw.choice([2, 3]), 64
    run = like_one_process(submission, ranks, draw, p, m, m * rows, width=width)
    own_messages(run)
    for rank in range(p):
        neighbours = {other for other in (rank - 1, rank + 1) if 0 <= other < p}
        expect(run.trace.sends_to(rank), f"ranks that rank {rank} of {p} sends to").equals(neighbours)
        wanted = len(neighbours) * m * rows * width * 4
        expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank}", unit="bytes").at_least(wanted)
        expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank}", unit="bytes").at_most(wanted + 2 * m * FORM)
        sizes = run.values[rank]["seen"]
        expect(sizes, f"samples in each forward of rank {rank}").equals([[rows] * m])


@check(
    points=1,
    todo=5,
    title="real processes: the same values, and no more bytes",
    look_at="one `messages.exchange` in every slot, `wait_for_sends` at the end",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    p, m, rows, width = 3, 4, draw.choice([300, 400]), 300
    run = like_one_process(
        submission, ranks, draw, p, m, m * rows, width=width, altered=False, call=ranks.processes(p).call
    )
    own_messages(run)
    assert isinstance(run, ProcessRun)
    payload = 2 * (p - 1) * m * rows * width * 4
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_least(
        payload
    )
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        1.1 * payload
    )
