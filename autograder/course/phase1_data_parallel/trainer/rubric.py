"""Hidden rubric of trainer: 25 points, 15 for the result of a step and 10 for the communication pattern.

A step is compared with torch in one process with all ranks' samples. Gathering the batch would give the right values
too. So there are enough samples for gradients to be small beside them, and ranks may exchange only as many bytes as
gradients take. (The rank itself reports what the model saw; this makes feedback plainer.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.hardware import LINKS
from labkit.trace import SIGNAL_BYTES, Event, Kind

LINK = "ethernet-10g"
FEATURES, CLASSES = 5, 3
REDUCTIONS = ("per_parameter", "flat", "gather_scatter", "tree")
ROWS = 400
"""Number of samples for each unit of a share."""
CLOSE = 1e-4
"""Tolerance for float32 and a few steps of Adam; sums over ranks may come in any order."""
SLACK = 1.5
"""Allowance for a tree whose ranks do more than necessary between two messages."""
FORBIDDEN = {
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.optim.ZeroRedundancyOptimizer",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""

Batch = tuple[Tensor, Tensor]


# What runs on the ranks -----------------------------------------------------------------------------------------------


def net(kind: str, hidden: int, dtype: str, features: int = 5) -> nn.Module:
    """A small classifier; an `odd` one has frozen, tied, unused and sometimes used parameters."""
    import torch
    from torch import nn

    class Net(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, 3)
            self.register_buffer("scale", torch.ones(hidden))
            self.seen: list[int] = []
            if kind == "odd":
                self.middle, self.again, self.branch = (nn.Linear(hidden, hidden) for _ in range(3))
                self.again.weight = self.middle.weight
                self.unused = nn.Parameter(torch.ones(hidden))
                self.last.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(x))
            h = torch.tanh(self.first(x)) * self.scale
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


def trained(
    weights: list[Tensor],
    batches: list[Batch],
    kind: str = "plain",
    dtype: str = "float32",
    optimizer: str = "adam",
    reduction: str = "flat",
    strided: bool = False,
    group: Any = None,
    mark: Any = None,
    forward: Any = None,
    features: int = 5,
) -> Any:
    """On a rank: train a net with `weights` on `batches`; call `mark` before the first step and after each."""
    import torch

    from labkit.exercises import trainer

    model = net(kind, len(weights[0]), dtype, features)
    state = [*model.parameters(), *model.buffers()]
    with torch.no_grad():
        for tensor, values in zip(state, weights, strict=True):
            if strided and tensor.dim() == 2:
                tensor.data = tensor.data.t().contiguous().t()
            tensor.copy_(values)
    if forward is not None:
        model.register_forward_pre_hook(lambda *_: forward())
    step_of = optimizer_of(optimizer, model)
    rank = trainer.DataParallelTrainer(model, step_of, torch.nn.functional.cross_entropy, group, reduction)
    start = [tensor.detach().clone() for tensor in state]
    metrics = []
    for batch in batches:
        if mark is not None:
            mark()
        metrics.append(rank.train_step((batch[0], batch[1])))
    if mark is not None:
        mark()
    return {
        "start": start,
        "state": [tensor.detach().contiguous() for tensor in state],
        "losses": [step.loss for step in metrics],
        "compute": [step.compute_seconds for step in metrics],
        "communication": [step.communication_seconds for step in metrics],
        "seen": model.seen,
    }


def misused(case: str, mark: Any) -> str:
    """On a rank: return the error for a wrong argument; `mark` is called first."""
    import torch
    from torch import nn

    from labkit.exercises import trainer

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    own, foreign = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    loss_fn = nn.functional.mse_loss
    rank: Any = trainer.DataParallelTrainer(model, own, loss_fn) if case == "batch" else None
    mark()
    try:
        if case == "reduction":
            trainer.DataParallelTrainer(model, own, loss_fn, reduction="ring")
        elif case == "optimizer":
            trainer.DataParallelTrainer(model, foreign, loss_fn)
        else:
            rank.train_step((torch.ones(3, 2), torch.ones(2, 2)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def rates(cases: list[list[Any]]) -> list[float]:
    """On a rank: return learning rates."""
    from labkit.exercises import trainer

    return [
        trainer.scaled_learning_rate(rate, size, step, base_batch_size=base, warmup_steps=warm)
        for rate, size, step, base, warm in cases
    ]


# Reference in one process ---------------------------------------------------------------------------------------------


def state(
    draw: Draw, kind: str = "plain", hidden: int = 7, dtype: str = "float32", features: int = FEATURES
) -> list[Tensor]:
    """Return values of a net's parameters and buffers, the buffer last."""
    model = net(kind, hidden, dtype, features)
    return [draw.tensor(tuple(t.shape)).to(t.dtype) / 16 for t in (*model.parameters(), *model.buffers())]


def apart(
    draw: Draw, world_size: int, kind: str = "plain", hidden: int = 7, dtype: str = "float32"
) -> list[list[Tensor]]:
    """Return values for each rank: different weights, the same buffer."""
    found = [state(draw, kind, hidden, dtype) for _ in range(world_size)]
    return [[*values[:-1], found[0][-1]] for values in found]


def batch(draw: Draw, share: int, dtype: str = "float32", features: int = FEATURES) -> Batch:
    """Return `share` times `ROWS` samples. Inputs from -2 to 2 use all their digits, so they cannot be compressed."""
    generator = torch.Generator().manual_seed(draw.getrandbits(62))
    inputs = 4 * torch.rand((share * ROWS, features), generator=generator) - 2
    return inputs.to(getattr(torch, dtype)), torch.randint(CLASSES, (len(inputs),), generator=generator)


class Whole:
    """Steps of one process on the samples of all ranks: `batches[step][rank]`."""

    def __init__(
        self,
        weights: list[Tensor],
        batches: Sequence[Sequence[Batch]],
        kind: str = "plain",
        dtype: str = "float32",
        optimizer: str = "adam",
        features: int = FEATURES,
    ) -> None:
        model = net(kind, len(weights[0]), dtype, features)
        tensors = [*model.parameters(), *model.buffers()]
        with torch.no_grad():
            for tensor, values in zip(tensors, weights, strict=True):
                tensor.copy_(values)
        step_of = optimizer_of(optimizer, model)
        self.losses = []
        for parts in batches:
            step_of.zero_grad()
            inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            step_of.step()
            self.losses.append(loss.item())
        self.state = [tensor.detach() for tensor in tensors]


def compared(run: Run, whole: Whole, members: Sequence[int], rel: float = CLOSE) -> None:
    """Check that every rank of `members` has the reference's weights and losses."""
    for number, wanted in enumerate(whole.state):
        seen = [run.values[rank]["state"][number] for rank in members]
        expect(seen, "a weight after the last step").close_to([wanted] * len(members), rel=rel)


LOOK = "each rank computes with its own samples, and only gradients travel"


def own_samples(run: Run, batches: Sequence[Sequence[Batch]]) -> None:
    """Check that each rank's model reports that it saw its own samples, once."""
    for rank, value in enumerate(run.values):
        sizes = [len(parts[rank][1]) for parts in batches]
        seen = [size for size in value["seen"] if size]
        expect(seen, f"samples that the model saw on rank {rank}, in each pass", look_at=LOOK).equals(
            [size for size in sizes if size]
        )


def only_gradients(run: Run, steps: int, weights: Sequence[Tensor]) -> None:
    """Check that ranks exchanged no more bytes than gradients: `steps` times, and once at the start, in both
    directions.

    Each tensor may be sent separately, with its own flag.
    """
    size = max(4, weights[0].element_size())
    once = sum(tensor.numel() * size + 2 * (size + SIGNAL_BYTES) for tensor in weights)
    limit = 2 * once * len(run.values) * (1 + steps)
    expect(run.trace.bytes_told(), "bytes that ranks told each other", look_at=LOOK, unit="bytes").at_most(limit)


def like_one_process(
    submission: Submission,
    ranks: Ranks,
    draw: Draw,
    shares: Sequence[Sequence[int]],
    *,
    kind: str = "plain",
    dtype: str = "float32",
    optimizer: str = "adam",
    reduction: str = "flat",
    hidden: int = 7,
    rel: float = CLOSE,
    **hardware: Any,
) -> tuple[Run, Whole]:
    """Train on ranks with `shares[step][rank]` samples each, and expect the result of one process."""
    world_size = len(shares[0])
    weights = apart(draw, world_size, kind, hidden, dtype)
    batches = [[batch(draw, size, dtype) for size in sizes] for sizes in shares]
    run = ranks(world_size, **hardware).call(
        submission.used_by(trained, net, optimizer_of),
        [
            Args(
                weights[r], [parts[r] for parts in batches], kind, dtype, optimizer, reduction, mark=work("step", 1e-6)
            )
            for r in range(world_size)
        ],
    )
    whole = Whole(weights[0], batches, kind, dtype, optimizer)
    compared(run, whole, range(world_size), rel)
    own_samples(run, batches)
    only_gradients(run, len(batches), weights[0])
    return run, whole


def by_step(run: Run, rank: int) -> list[list[Event]]:
    """Return a rank's messages and collectives in each of its steps."""
    steps: list[list[Event]] = []
    for event in sorted(run.trace.of(rank), key=lambda event: event.start):
        if event.kind is Kind.COMPUTE and event.operation == "step":
            steps.append([])
        elif steps and event.kind in (Kind.COLLECTIVE, Kind.SEND):
            steps[-1].append(event)
    return steps[:-1]


def numel(weights: Whole) -> int:
    """Return the number of parameter elements: all of the state except the buffer."""
    return sum(tensor.numel() for tensor in weights.state[:-1])


def unequal(draw: Draw, world_size: int) -> list[int]:
    return draw.sample([1, 2, 3, 4, 6, 7, 9], world_size)


# Values ---------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=1,
    title="weights and buffers start equal, whatever their kind",
    look_at="start_equal: what must be sent",
)
def start(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, strided in ((draw.choice([2, 4]), False), (3, True)):
        weights = [state(draw, "odd") for _ in range(world_size)]
        run = ranks(world_size).call(
            submission.used_by(trained, net, optimizer_of),
            [Args(weights[rank], [], "odd", strided=strided) for rank in range(world_size)],
        )
        for number, wanted in enumerate(weights[0]):
            seen = [value["start"][number] for value in run.values]
            expect(seen, "weights before any step").equals([wanted] * world_size)


@check(
    points=2,
    todo=3,
    title="some steps are those of one process",
    look_at="the sum of the gradients, and what divides it",
)
def steps(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5]), draw.choice([2, 4])):
        size = draw.randrange(2, 7)
        like_one_process(submission, ranks, draw, [[size] * world_size] * 3)
    like_one_process(submission, ranks, draw, [[5]] * 2)


@check(points=2, todo=3, title="unequal shares of the batch", look_at="the weight of each rank's gradient")
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 4, 5])
    like_one_process(submission, ranks, draw, [unequal(draw, world_size) for _ in range(3)])


@check(
    points=1, todo=3, title="ranks without samples, and a batch without any", look_at="what the mean of no sample is"
)
def empty(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, [[0, draw.randrange(2, 6), 0], [draw.choice([1, 2, 5, 6]), 0, 3]])
    weights, nothing = state(draw), batch(draw, 0)
    run = ranks(2).call(
        submission.used_by(trained, net, optimizer_of), [Args(weights, [nothing], "plain", optimizer="sgd")] * 2
    )
    for value in run.values:
        expect(math.isnan(value["losses"][0]), "the loss of no samples is not a number").equals(True)
        for seen, wanted in zip(value["state"], weights, strict=True):
            expect(seen, "a weight after a step without samples").equals(wanted)


@check(
    points=2,
    todo=3,
    title="frozen, tied and unused parameters",
    look_at="a parameter whose grad is None: on this rank, or on all of them",
)
def parameters(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 4])
    weights = apart(draw, world_size, "odd")
    batches = [[batch(draw, size) for size in unequal(draw, world_size)] for _ in range(3)]
    for parts in batches[:2]:  # with a negative first input the branch is not used: on one rank, then on all
        for inputs, _ in parts[1:] if parts is batches[0] else parts:
            inputs[:, 0] = -1.0
        if parts is batches[0]:
            parts[0][0][:, 0] = 1.0
    run = ranks(world_size).call(
        submission.used_by(trained, net, optimizer_of),
        [Args(weights[r], [parts[r] for parts in batches], "odd", optimizer="sgd") for r in range(world_size)],
    )
    compared(run, Whole(weights[0], batches, "odd", optimizer="sgd"), range(world_size))
    own_samples(run, batches)
    only_gradients(run, len(batches), weights[0])


@check(points=1, todo=3, title="other dtypes keep their precision", look_at="the dtype in which gradients travel")
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, [[2, 5, 3]] * 2, dtype="float64", rel=1e-11)
    like_one_process(submission, ranks, draw, [[4, 1, 3]], dtype="bfloat16", optimizer="sgd", rel=0.05)


@check(
    points=1, todo=3, title="a group of some of the ranks", look_at="first rank, sums: of the group, not of the world"
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    order = draw.sample(range(5), 5)
    parts = [sorted(order[:2]), sorted(order[2:])]
    reductions = draw.sample(REDUCTIONS, 2)
    mine = {rank: number for number, part in enumerate(parts) for rank in part}
    weights = apart(draw, 5)
    batches = [[batch(draw, size) for size in unequal(draw, 5)] for _ in range(2)]
    given = [
        Args(
            weights[r],
            [sizes[r] for sizes in batches],
            reduction=reductions[mine[r]],
            group=group_of(parts[mine[r]]),
        )
        for r in range(5)
    ]
    run = ranks(5).call(submission.used_by(trained, net, optimizer_of), given)
    for part in parts:
        whole = Whole(weights[part[0]], [[sizes[rank] for rank in part] for sizes in batches])
        compared(run, whole, part)
    own_samples(run, batches)
    only_gradients(run, len(batches), weights[0])


@check(points=1, todo=3, title="the loss of the whole batch, on every rank", look_at="the loss that a step returns")
def loss(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    run, whole = like_one_process(submission, ranks, draw, [unequal(draw, 3) for _ in range(2)])
    for value in run.values:
        for seen, wanted in zip(value["losses"], whole.losses, strict=True):
            expect(seen, "loss").close_to(wanted, rel=CLOSE)


@check(
    points=1,
    todo=3,
    title="bad arguments raise ValueError before any message",
    look_at="the given lines at the beginning must stay",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_one_process(submission, ranks, draw, [[3, 3]])
    for case in ("reduction", "optimizer", "batch"):
        run = ranks(2).call(submission.used_by(misused), [Args(case, work("step", 1e-6))] * 2)
        for rank, value in enumerate(run.values):
            expect(value.split(":")[0], f"a bad {case} raises").equals("ValueError")
            expect(value, "message").contains(case)
            sent = [e for e in run.trace.of(rank) if e.kind is not Kind.COMPUTE and e.start > _marked(run, rank)]
            expect(len(sent), "messages and collectives").equals(0)


def _marked(run: Run, rank: int) -> float:
    return next(e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "step")


@check(
    points=2,
    todo=4,
    title="the learning rate, with and without a warm-up",
    look_at="the factor at the ends of the warm-up",
)
def learning_rate(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    rate, base = draw.uniform(0.01, 1.0), draw.choice([32, 100, 256])
    cases, wanted = [], []
    for scale, warm in ((draw.choice([2, 8, 31]), draw.randrange(5, 40)), (0.5, 4), (draw.choice([3, 4]), 0)):
        for step in sorted({0, 1, warm // 2, warm, warm + 1, 10 * warm + 7}):
            size, share = int(base * scale), min(step / warm, 1.0) if warm else 1.0
            cases.append([rate, size, step, base, warm])
            wanted.append(rate * (1 - share) + rate * (size / base) * share)
    (seen,) = ranks(1).call(submission.used_by(rates), [Args(cases)]).values
    expect(torch.tensor(seen), "learning rates").close_to(torch.tensor(wanted), rel=1e-6)
    bad = draw.choice([[0.1, 0, 1, 256, 0], [0.1, 64, -1, 256, 0], [0.1, 64, 1, 0, 5], [0.1, 64, 1, 256, -5]])
    run = ranks(1).attempt(submission.used_by(rates), [Args([bad])])
    error = run.ranks[0].error
    expect(error.type if error else "no error", "a size of 0, or a step below 0, raises").equals("ValueError")


# Communication pattern ------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=3,
    title="flat: one collective in each step, no larger than it must be",
    look_at="what is sent besides `message.flat`",
)
def flat(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    hidden, world_size = draw.randrange(20, 40), draw.choice([3, 5])
    run, whole = like_one_process(submission, ranks, draw, [unequal(draw, world_size)] * 3, hidden=hidden)
    gradients = 4 * numel(whole)
    for rank in range(world_size):
        for events in by_step(run, rank):
            called = [event.operation for event in events]
            expect(called, f"messages and collectives of a step on rank {rank}").equals(["all_reduce"])
            expect(events[0].nbytes, "bytes that are added up", unit="bytes").at_least(gradients)
            expect(events[0].nbytes, "bytes that are added up", unit="bytes").at_most(gradients + 128)


@check(
    points=1,
    todo=3,
    title="per_parameter: an all-reduce for each parameter",
    look_at="add_up: one all-reduce for each of `message.pieces`",
)
def per_parameter(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    run, whole = like_one_process(submission, ranks, draw, [unequal(draw, 3)] * 2, reduction="per_parameter")
    wanted = Counter(4 * tensor.numel() for tensor in whole.state[:-1])
    for events in (step for rank in range(3) for step in by_step(run, rank)):
        expect({event.operation for event in events}, "collectives of a step").equals({"all_reduce"})
        found = Counter(event.nbytes for event in events)
        expect(sum((wanted - found).values()), "parameters without an all-reduce of their size").equals(0)
        expect(len(events), "all-reduces of a step").at_most(sum(wanted.values()) + 2)


@check(points=1, todo=3, title="gather_scatter: one gather and one scatter", look_at="add_up: where the sum is made")
def gather_scatter(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    run, _ = like_one_process(submission, ranks, draw, [unequal(draw, world_size)] * 2, reduction="gather_scatter")
    for events in (step for rank in range(world_size) for step in by_step(run, rank)):
        expect([event.operation for event in events], "collectives of a step").equals(["gather", "scatter"])


@check(
    points=2,
    todo=3,
    title="tree: messages up a tree and down again",
    look_at="add_up: `all_reduce_tree` of exercise 02",
)
def tree(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, hidden = draw.choice([5, 6, 7]), 60
    shares = [unequal(draw, world_size)]
    run, whole = like_one_process(
        submission, ranks, draw, shares, reduction="tree", hidden=hidden, inter_node=LINK, optimizer="sgd"
    )
    events = [event for rank in range(world_size) for step in by_step(run, rank) for event in step]
    expect({event.operation for event in events} & {"all_reduce", "gather", "broadcast", "reduce"}, "library").equals(
        set()
    )
    sent = [event for event in events if event.kind is Kind.SEND]
    expect(len(sent), "messages of all ranks in a step").equals(2 * (world_size - 1))
    told = sum(event.nbytes for event in sent)
    expect(told, "bytes of these messages", unit="bytes").at_most(2 * (world_size - 1) * (4 * numel(whole) + 128))
    seconds = max(event.end for event in sent) - min(event.start for event in sent)
    rounds = 2 * math.ceil(math.log2(world_size))
    expect(seconds, "seconds from the first message to the last", unit="seconds").at_most(
        SLACK * rounds * LINKS[LINK].seconds(4 * numel(whole))
    )


@check(points=1, todo=3, title="compute and communication are told apart", look_at="where the times are taken")
def times(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    seconds = draw.sample([0.01, 0.02, 0.04, 0.05], 3)
    weights, parts = state(draw), [batch(draw, 3) for _ in range(3)]
    given = [Args(weights, [part], forward=work("forward", s)) for part, s in zip(parts, seconds, strict=True)]
    run = ranks(3, inter_node=LINK).call(submission.used_by(trained, net, optimizer_of), given)
    compared(run, Whole(weights, [parts]), range(3))
    only_gradients(run, 1, weights)
    for rank, value in enumerate(run.values):
        expect(value["compute"][0], "compute_seconds", unit="seconds").close_to(seconds[rank], rel=0.05)
        waited = max(seconds) - seconds[rank]
        taken = run.trace.collectives(rank)[-1]
        expect(value["communication"][0], "communication_seconds", unit="seconds").at_least(
            max(waited, taken.end - taken.start) * 0.95
        )
        expect(value["communication"][0], "communication_seconds", unit="seconds").at_most(waited + 0.004)


@check(
    points=2,
    todo=3,
    title="real processes: the same step, and no more bytes than its gradients need",
    look_at="what may be different with gloo: tensors that are not contiguous, what travels beside the gradients",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    # so many features that a rank's samples take more bytes than the gradients
    world_size, features, hidden = 3, 200, draw.randrange(200, 250)
    weights = state(draw, hidden=hidden, features=features)
    shares = draw.sample([4, 6, 8, 10], world_size)
    batches = [[batch(draw, size, features=features) for size in shares] for _ in range(2)]
    run = ranks.processes(world_size).call(
        submission.used_by(trained, net, optimizer_of),
        [
            Args(
                weights if rank == 0 else [w + 1 for w in weights],
                [parts[rank] for parts in batches],
                strided=True,
                features=features,
            )
            for rank in range(world_size)
        ],
    )
    whole = Whole(weights, batches, features=features)
    compared(run, whole, range(world_size))
    own_samples(run, batches)
    nbytes = 4 * (numel(whole) + hidden)
    # an all-reduce for each step, and at most one at the start
    wanted = (1 + len(batches)) * 2 * (world_size - 1) * nbytes
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        1.1 * wanted
    )
