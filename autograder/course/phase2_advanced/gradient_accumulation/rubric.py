"""Hidden rubric of gradient_accumulation: 25 points, 19 for the step of a window and 6 for communication and memory.

A window is compared with torch in one process with all its samples in one batch. Each rank computes its losses by
itself; the learner's code learns about other ranks only by messages.
Memory comes from the ranks' own accounts, and the kernel's count of the same run confirms it where the activations of
the whole window take `HOARD` or more. The size of the net does not reveal whether a check measures memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.trace import Event, Kind
from labkit.units import exact_size

FEATURES, CLASSES = 5, 3
CLOSE = 1e-4
"""Tolerance for float32, a few steps of Adam; sums may come in any order."""
HOARD = 48 << 20
"""Bytes of a rank's activations of all microbatches, where memory is measured."""
NOISE = 10 << 20
"""Allowance for bytes that the kernel counts for each rank beside its tensors and what torch takes."""
WIDE = range(12_000, 30_000)
"""Hidden sizes of a net where memory is measured; elsewhere it is as wide, or a few wide."""
FORBIDDEN = {
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""

Batch = tuple[Tensor, Tensor]
Shares = Sequence[Sequence[int]]
"""Samples of each rank's microbatches in a window."""
Window = list[list[Batch]]
"""Microbatches of each rank."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def net(kind: str, hidden: int, dtype: str) -> nn.Module:
    """A small classifier; an `odd` one has frozen, tied, unused and sometimes used parameters."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, hidden), nn.Linear(hidden, 3)
            if kind == "odd":
                self.middle, self.again, self.branch = (nn.Linear(hidden, hidden) for _ in range(3))
                self.again.weight = self.middle.weight
                self.unused = nn.Parameter(torch.ones(hidden))
                self.last.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.first(x))
            if kind == "odd":
                h = torch.tanh(self.again(torch.tanh(self.middle(h))))
                rows = x[:, 0] > 0
                if bool(rows.any()):
                    h = torch.where(rows[:, None], h + self.branch(h), h)
            outputs: torch.Tensor = self.last(h)
            return outputs

    return Net().to(getattr(torch, dtype))


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Adam's step is not linear in the gradient; weight decay moves every parameter that has a gradient."""
    import torch

    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.05, eps=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1)


def accumulated(
    weights: list[Tensor],
    microbatches: list[Batch],
    steps: int,
    kind: str = "plain",
    dtype: str = "float32",
    optimizer: str = "adam",
    counted: bool = True,
    max_norm: Any = None,
    flushes: int = 0,
    empty: str = "no call",
    scales: Any = None,
    strided: bool = False,
    group: Any = None,
    mark: Any = None,
) -> Any:
    """On a rank: `backward` and `step` for each microbatch, then flushes; `mark` is called before each and at the end.

    empty: treatment of a microbatch without samples, whose loss is NaN; it may be passed with 0 samples.
    scales: a factor of the loss for each microbatch.
    """
    import torch

    from labkit.exercises import gradient_accumulation

    model = net(kind, len(weights[0]), dtype)
    state = list(model.parameters())
    with torch.no_grad():
        for tensor, values in zip(state, weights, strict=True):
            if strided and tensor.dim() == 2:
                tensor.data = tensor.data.t().contiguous().t()
            tensor.copy_(values)
    step_of = optimizer_of(optimizer, model)
    rank = gradient_accumulation.GradientAccumulator(model, step_of, steps, max_norm=max_norm, group=group)

    def weights_now() -> torch.Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in state])

    said, moved, last, graphs = [], [], weights_now(), False
    for number in range(len(microbatches) + flushes):
        if mark is not None:
            mark()
        if number >= len(microbatches):
            said.append(rank.flush())
        else:
            inputs, targets = microbatches[number]
            if len(targets) or empty == "handed over":
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
                loss = loss if scales is None else loss * scales[number]
                told = rank.backward(loss, samples=len(targets)) if counted else rank.backward(loss)
                graphs = graphs or not isinstance(told, torch.Tensor) or told.requires_grad
            said.append(rank.step())
        moved.append(not torch.equal(weights_now(), last))
        last = weights_now()
    if mark is not None:
        mark()
    return {
        "state": [tensor.detach().contiguous() for tensor in state],
        "said": said,
        "moved": moved,
        "graphs": graphs,
    }


def one_window(weights: list[Tensor], microbatches: list[Batch]) -> Any:
    """On a rank: run one window of these microbatches; return the weights."""
    import torch

    from labkit.exercises import gradient_accumulation

    model = net("plain", len(weights[0]), "float32")
    with torch.no_grad():
        for tensor, values in zip(model.parameters(), weights, strict=True):
            tensor.copy_(values)
    rank = gradient_accumulation.GradientAccumulator(model, optimizer_of("sgd", model), len(microbatches))
    losses = []
    for inputs, targets in microbatches:
        losses.append(rank.backward(torch.nn.functional.cross_entropy(model(inputs), targets)))
        rank.step()
    return {"state": [tensor.detach() for tensor in model.parameters()]}


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch
    from torch import nn

    from labkit.exercises import gradient_accumulation

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    own, foreign = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    make = gradient_accumulation.GradientAccumulator
    tried = {
        "steps": lambda: make(model, own, 0),
        "max_norm": lambda: make(model, own, 2, max_norm=-1.0),
        "optimizer": lambda: make(model, foreign, 2),
        "samples": lambda: make(model, own, 2).backward(model(torch.ones(3, 2)).mean(), samples=-1),
        "loss": lambda: make(model, own, 2).backward(model(torch.ones(3, 2))),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# Reference in one process ---------------------------------------------------------------------------------------------


def state(draw: Draw, kind: str = "plain", hidden: int = 7, dtype: str = "float32") -> list[Tensor]:
    """Return values of a net's parameters. The output of a wide net is as large as that of another."""
    parameters = list(net(kind, hidden, dtype).parameters())
    values = [draw.tensor(tuple(p.shape)).to(p.dtype) / 16 for p in parameters]
    return [v / max(1, v.shape[-1] / 50) ** 0.5 for v in values]


def hidden_of(draw: Draw, few: int) -> int:
    """Return the width of a net: `few`, or as wide as where memory is measured."""
    return draw.choice([few, draw.choice(WIDE)])


def batch(draw: Draw, size: int, dtype: str = "float32") -> Batch:
    classes = torch.tensor([draw.randrange(CLASSES) for _ in range(size)], dtype=torch.int64)
    return draw.tensor((size, FEATURES)).to(getattr(torch, dtype)) / 4, classes


def window_of(draw: Draw, shares: Shares, dtype: str = "float32") -> Window:
    return [[batch(draw, size, dtype) for size in sizes] for sizes in shares]


class Whole:
    """One process that takes a step for each window, with all its samples in one batch."""

    def __init__(
        self,
        weights: list[Tensor],
        windows: Sequence[Window],
        kind: str = "plain",
        dtype: str = "float32",
        optimizer: str = "adam",
        max_norm: float | None = None,
    ) -> None:
        model = net(kind, len(weights[0]), dtype)
        self.state = list(model.parameters())
        with torch.no_grad():
            for tensor, values in zip(self.state, weights, strict=True):
                tensor.copy_(values)
        step_of = optimizer_of(optimizer, model)
        self.norms = []
        """Norms of the gradients before clipping."""
        for window in windows:
            step_of.zero_grad()
            inputs, targets = (torch.cat(column) for column in zip(*chain(*window), strict=True))
            nn.functional.cross_entropy(model(inputs), targets).backward()
            norm = nn.utils.clip_grad_norm_(self.state, float("inf") if max_norm is None else max_norm)
            self.norms.append(norm.item())
            step_of.step()
        self.state = [tensor.detach() for tensor in self.state]  # type: ignore[misc]  # tensors from now on


def compared(run: Run, wanted: Sequence[Tensor], members: Sequence[int], rel: float = CLOSE) -> None:
    """Check that every rank of `members` has these weights."""
    for number, values in enumerate(wanted):
        seen = [run.values[rank]["state"][number] for rank in members]
        expect(seen, "a weight after the last window").close_to([values] * len(members), rel=rel)


def given_to(weights: list[Tensor], windows: Sequence[Window], steps: int, rank: int, **how: Any) -> Args:
    """Return one rank's arguments: its microbatches of all windows, one after the other."""
    return Args(weights, [one for window in windows for one in window[rank]], steps, **how)


def like_one_process(
    submission: Submission,
    ranks: Ranks,
    draw: Draw,
    shares: Sequence[Shares],
    steps: int,
    *,
    kind: str = "plain",
    dtype: str = "float32",
    optimizer: str = "adam",
    max_norm: float | None = None,
    hidden: int = 7,
    rel: float = CLOSE,
    **how: Any,
) -> tuple[Run, Whole]:
    """Accumulate windows with `shares[window][rank][microbatch]` samples, and expect the result of one process."""
    weights = state(draw, kind, hidden, dtype)
    windows = [window_of(draw, one, dtype) for one in shares]
    world_size = len(shares[0])
    how = {"kind": kind, "dtype": dtype, "optimizer": optimizer, "max_norm": max_norm, **how}
    run = ranks(world_size).call(
        submission.used_by(accumulated, net, optimizer_of),
        [given_to(weights, windows, steps, rank, mark=work("step", 1e-6), **how) for rank in range(world_size)],
    )
    whole = Whole(weights, windows, kind, dtype, optimizer, max_norm)
    compared(run, whole.state, range(world_size), rel)
    return run, whole


def by_step(run: Run, rank: int) -> list[list[Event]]:
    """Return a rank's messages and collectives for each microbatch and in each flush."""
    steps: list[list[Event]] = []
    for event in sorted(run.trace.of(rank), key=lambda event: event.start):
        if event.kind is Kind.COMPUTE and event.operation == "step":
            steps.append([])
        elif steps and event.kind in (Kind.COLLECTIVE, Kind.SEND):
            steps[-1].append(event)
    return steps[:-1]


def equal(draw: Draw, world_size: int, steps: int) -> Shares:
    return [[draw.randrange(2, 6)] * steps] * world_size


def unequal(draw: Draw, world_size: int, steps: int) -> Shares:
    return [draw.sample([1, 2, 3, 4, 6, 7, 9], steps) for _ in range(world_size)]


# Values ---------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=4,
    title="some windows are those of one process",
    look_at="what is added up, what divides it, and when",
)
def windows(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, counted in ((draw.choice([3, 5]), True), (draw.choice([2, 4]), False)):
        steps, size = draw.choice([2, 3, 4]), draw.randrange(2, 6)
        like_one_process(submission, ranks, draw, [[[size] * steps] * world_size] * 3, steps, counted=counted)
    like_one_process(submission, ranks, draw, [[[4] * 3]] * 2, 3)


@check(points=2, todo=4, title="unequal microbatches", look_at="the weight of each microbatch's gradient")
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps = draw.choice([2, 3, 4]), draw.choice([2, 3])
    like_one_process(submission, ranks, draw, [unequal(draw, world_size, steps) for _ in range(3)], steps)


@check(
    points=2,
    todo=4,
    title="microbatches without samples, and a window without any",
    look_at="what counts: steps, not samples",
)
def empty(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for way in ("no call", "handed over"):
        size = draw.randrange(2, 6)
        shares = [[[0, size], [0, 0], [size + 3, 0]], [[0, 0], [size, 2], [0, 0]]]
        like_one_process(submission, ranks, draw, shares, 2, empty=way)
    weights = state(draw)
    nothing, something = window_of(draw, [[0, 0]] * 2), window_of(draw, [[2, 5]] * 2)
    given = [given_to(weights, [nothing, something], 2, rank, optimizer="sgd") for rank in range(2)]
    run = ranks(2).call(submission.used_by(accumulated, net, optimizer_of), given)
    compared(run, Whole(weights, [something], optimizer="sgd").state, range(2))


@check(
    points=2,
    todo=4,
    title="flush: a window that is not full, and none at all",
    look_at="what divides the gradient of a short window; what is left when flush returns",
)
def partial(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps, size = draw.choice([2, 3]), draw.choice([4, 5]), draw.randrange(2, 6)
    left = draw.choice([1, 3])
    shares = [[[size] * n] * world_size for n in (steps, left)]
    run, _ = like_one_process(submission, ranks, draw, shares, steps, flushes=3, counted=draw.choice([True, False]))
    for rank in range(world_size):
        sent = [len(events) for events in by_step(run, rank)[-2:]]
        expect(sent, "messages of two flushes that have nothing to do").equals([0, 0])


@check(
    points=1,
    todo=4,
    title="True when the optimizer has stepped, and only then",
    look_at="what step, flush and backward return",
)
def returns(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    steps = draw.choice([3, 4])
    shares = [equal(draw, 2, n) for n in (steps, steps, 2)]
    run, _ = like_one_process(submission, ranks, draw, shares, steps, flushes=2)
    wanted = [*([False] * (steps - 1) + [True]) * 2, False, False, True, False]
    for value in run.values:
        expect(value["moved"], "weights have moved, microbatch by microbatch, then in two flushes").equals(wanted)
        expect(value["said"], "what step and flush returned").equals(wanted)
        expect(value["graphs"], "what backward returned has a graph").equals(False)


@check(
    points=3,
    todo=4,
    title="clipped by the norm of the whole window's gradient",
    look_at="of what the norm is: after the sum over the ranks and the division, of all parameters together",
)
def clipping(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for factor in (draw.uniform(0.3, 0.6), draw.uniform(1.1, 1.3)):
        world_size, steps = draw.choice([2, 3]), draw.choice([2, 3])
        weights = state(draw, hidden=hidden_of(draw, 7))
        one = window_of(draw, equal(draw, world_size, steps))
        limit = factor * Whole(weights, [one], optimizer="sgd").norms[0]
        given = [given_to(weights, [one], steps, r, optimizer="sgd", max_norm=limit) for r in range(world_size)]
        run = ranks(world_size).call(submission.used_by(accumulated, net, optimizer_of), given)
        compared(run, Whole(weights, [one], optimizer="sgd", max_norm=limit).state, range(world_size))


@check(
    points=1,
    todo=4,
    title="a gradient that is not finite moves no rank, and is gone with its window",
    look_at="who knows of it, and when",
)
def finite(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps, bad = 3, 2, draw.choice([float("nan"), float("inf")])
    weights, two = state(draw), [window_of(draw, equal(draw, world_size, steps)) for _ in range(2)]
    guilty = draw.randrange(world_size)
    given = [
        given_to(weights, two, steps, rank, scales=[bad if rank == guilty else 1.0, 1.0, 1.0, 1.0])
        for rank in range(world_size)
    ]
    run = ranks(world_size).call(submission.used_by(accumulated, net, optimizer_of), given)
    compared(run, Whole(weights, two[1:]).state, range(world_size))
    for value in run.values:
        expect(value["said"], "what step returned").equals([False, False, False, True])


@check(
    points=2,
    todo=4,
    title="frozen, tied and unused parameters",
    look_at="a parameter whose grad is None: on this rank, or on all of them",
)
def parameters(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps = draw.choice([2, 3]), 2
    weights = state(draw, "odd")
    three = [window_of(draw, equal(draw, world_size, steps)) for _ in range(3)]
    # with a negative first input the branch is not used: except for one microbatch of one rank, then nowhere
    for inputs, _ in (one for window in three[:2] for mine in window for one in mine):
        inputs[:, 0] = -1.0
    three[0][draw.randrange(world_size)][draw.randrange(steps)][0][:, 0] = 1.0
    run = ranks(world_size).call(
        submission.used_by(accumulated, net, optimizer_of),
        [given_to(weights, three, steps, rank, kind="odd", optimizer="sgd") for rank in range(world_size)],
    )
    compared(run, Whole(weights, three, "odd", optimizer="sgd").state, range(world_size))


@check(points=1, todo=4, title="other dtypes keep their precision", look_at="the dtype in which gradients travel")
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, [[[4, 4]] * 2] * 2, 2, dtype="float64", rel=1e-11)
    like_one_process(submission, ranks, draw, [[[3, 3]] * 2], 2, dtype="bfloat16", optimizer="sgd", rel=0.05)


@check(points=1, todo=4, title="a group of some of the ranks", look_at="sums: over the group, not over the world")
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    order, steps = draw.sample(range(5), 5), 2
    parts = [sorted(order[:2]), sorted(order[2:])]
    weights, one = state(draw, hidden=hidden_of(draw, 7)), window_of(draw, equal(draw, 5, steps))
    part_of = {rank: part for part in parts for rank in part}
    given = [given_to(weights, [one], steps, rank, group=group_of(part_of[rank])) for rank in range(5)]
    run = ranks(5).call(submission.used_by(accumulated, net, optimizer_of), given)
    for part in parts:
        compared(run, Whole(weights, [[one[rank] for rank in part]]).state, part)


@check(points=1, todo=4, title="bad arguments raise ValueError", look_at="the given lines at the beginning must stay")
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, [[[3, 3]] * 2], 2)
    cases = ["steps", "max_norm", "optimizer", "samples", "loss"]
    draw.shuffle(cases)
    (raised,) = ranks(1).call(submission.used_by(misused), [Args(cases)]).values
    for case, error in zip(cases, raised, strict=True):
        expect(error.split(":")[0], f"bad {case} raises").equals("ValueError")
        expect(error, "message").contains(case)


# Communication and memory ---------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=4,
    title="one collective at the end of a window, and nothing before",
    look_at="where you communicate, and what travels beside the gradients",
)
def communication(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps, hidden = draw.choice([2, 3]), draw.choice([3, 4]), hidden_of(draw, draw.randrange(20, 40))
    shares = [[[3] * steps] * world_size] * 2
    run, whole = like_one_process(submission, ranks, draw, shares, steps, hidden=hidden, max_norm=1e9)
    nbytes = 4 * sum(tensor.numel() for tensor in whole.state)
    for rank in range(world_size):
        for number, events in enumerate(by_step(run, rank)):
            called = [event.operation for event in events]
            if (number + 1) % steps:
                expect(called, "messages and collectives inside a window").equals([])
                continue
            expect(called, "messages and collectives at the end of a window").equals(["all_reduce"])
            expect(events[0].nbytes, "bytes that are added up", unit="bytes").at_least(nbytes)
            expect(events[0].nbytes, "bytes that are added up", unit="bytes").at_most(nbytes + 128)


@check(
    points=2,
    todo=4,
    title="memory of one microbatch, however long the window",
    look_at="what is kept from one microbatch to the next",
    needs={"memory"},
)
def memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, size, hidden = 2, draw.randrange(4, 9), draw.choice(WIDE)
    weights = state(draw, hidden=hidden)
    activations = 4 * size * hidden
    peaks: list[int] = []
    for steps in (2, math.ceil(HOARD / activations)):
        one = window_of(draw, [[size] * steps] * world_size)
        given = [Args(weights, one[rank]) for rank in range(world_size)]
        run, nbytes = ranks(world_size, account=True).measured(submission.used_by(one_window, net, optimizer_of), given)
        compared(run, Whole(weights, [one], optimizer="sgd").state, range(world_size))
        for rank in range(world_size):
            # tensors that are sent are held elsewhere
            expect(run.trace.messages_sent(rank), f"messages in a window of {steps}").equals(0)
        peaks.append(max(run.trace.peak_memory(rank) for rank in range(world_size)))
    expect(peaks[0], "peak bytes with a window of 2", unit="bytes").at_least(1)
    expect(
        peaks[1], f"peak memory with a window of {steps}, {exact_size(peaks[0])} with one of 2", unit="bytes"
    ).at_most(1.1 * peaks[0])
    # received data, the net, its gradients, the message, its copy in transit; a microbatch's activations and gradients
    limit = 7 * 36 * hidden + 3 * activations
    what = f"bytes that a rank holds at most with a window of {steps}, by the kernel's count"
    expect(nbytes / world_size - NOISE, what, unit="bytes").at_most(limit)


@check(
    points=1,
    todo=4,
    title="real processes: the same window, and no more bytes than its gradients need",
    look_at="what may be different with gloo: tensors that are not contiguous, what travels beside the gradients",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps, hidden = 3, 3, draw.choice(WIDE[len(WIDE) // 2 :])
    weights = state(draw, hidden=hidden)
    # one window: after steps that large, the next one's logits would be sensitive to rounding
    one = window_of(draw, unequal(draw, world_size, 2))
    how = {"optimizer": "sgd", "flushes": 1, "strided": True}
    given = [given_to(weights, [one], steps, rank, **how) for rank in range(world_size)]
    run = ranks.processes(world_size).call(submission.used_by(accumulated, net, optimizer_of), given)
    compared(run, Whole(weights, [one], optimizer="sgd").state, range(world_size))
    nbytes = 4 * sum(tensor.numel() for tensor in weights)
    wanted = 2 * (world_size - 1) * nbytes
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        1.1 * wanted
    )
