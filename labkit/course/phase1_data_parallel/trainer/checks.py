"""Visible checks and hints of trainer: one weight, so that a wrong number can be traced by hand.

The model is one weight w, its loss the mean of w * x, so the gradient is the mean of the inputs x. Samples of rank r
are 10 ** r times the total number of samples, so each digit of the mean is the number of samples of one rank. A
gradient of 2031 means that rank 0 has one sample, rank 1 three, rank 2 none and rank 3 two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run


def steps_of(
    weight: float, inputs: Tensor, reduction: str = "flat", steps: int = 1, group: Any = None, wait: Any = None
) -> Any:
    """On a rank: train one weight with learning rate 1 and return a record of each step; `wait` runs in forward."""
    import torch
    from torch import nn

    from labkit.exercises import trainer

    class OneWeight(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if wait is not None:
                wait()
            return super().forward(inputs)

    model = OneWeight(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rank = trainer.DataParallelTrainer(model, optimizer, lambda y, _: y.mean(), group, reduction)
    weights, metrics = [model.weight.item()], []
    for _ in range(steps):
        metrics.append(rank.train_step((inputs[:, None], torch.zeros(len(inputs)))))
        weights.append(model.weight.item())
    return {
        "weights": weights,
        "losses": [step.loss for step in metrics],
        "compute": [step.compute_seconds for step in metrics],
        "communication": [step.communication_seconds for step in metrics],
    }


def starts(number: float, strided: bool) -> list[list[float]]:
    """On a rank: return a weight and two buffers, initialized from `number`, after creating a trainer. strided: use a
    transposed weight."""
    import torch
    from torch import nn

    from labkit.exercises import trainer

    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = number + torch.arange(6.0).view(2, 3)
            self.weight = nn.Parameter(weight.t().contiguous().t() if strided else weight)
            self.register_buffer("scale", torch.full((2,), number))
            self.register_buffer("count", torch.tensor(int(number)))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight.sum()

    model = Buffered()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer.DataParallelTrainer(model, optimizer, lambda y, _: y.mean())
    return [tensor.detach().flatten().tolist() for tensor in model.state_dict().values()]


def odd_parameters(inputs: Tensor, used: bool) -> Any:
    """On a rank: take two steps with a model that has unusual weights, and return how far each has moved."""
    import torch
    from torch import nn

    from labkit.exercises import trainer

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.frozen, self.unused, self.sometimes = (nn.Parameter(torch.ones(1)) for _ in range(4))
            self.tied = self.plain
            self.frozen.requires_grad_(False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = inputs * (self.plain + self.tied) + self.frozen
            return outputs + inputs * self.sometimes if used else outputs

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    rank = trainer.DataParallelTrainer(model, optimizer, lambda y, _: y.mean())
    for _ in range(2):
        rank.train_step((inputs, inputs))
    return {name: parameter.item() for name, parameter in model.named_parameters()}


def rates(learning_rate: float, global_batch_size: int, steps: list[int], warmup_steps: int) -> list[float]:
    """On a rank: return the learning rates of these steps."""
    from labkit.exercises import trainer

    scaled = trainer.scaled_learning_rate
    return [scaled(learning_rate, global_batch_size, step, warmup_steps=warmup_steps) for step in steps]


def samples(shares: Sequence[int]) -> list[Tensor]:
    """Return each rank's samples: the total number of samples, times 10 ** rank."""
    return [torch.full((share,), float(sum(shares) * 10**rank)) for rank, share in enumerate(shares)]


def digits(shares: Sequence[int]) -> float:
    """Return the mean of all these samples."""
    return float(sum(share * 10**rank for rank, share in enumerate(shares)))


def trained(
    submission: Submission, ranks: Ranks, shares: Sequence[int], reduction: str = "flat", steps: int = 1
) -> Run:
    inputs = [Args(1.0, x, reduction, steps) for x in samples(shares)]
    return ranks(len(shares)).call(submission.used_by(steps_of), inputs)


def gradient(run: Run, step: int = 0) -> list[float]:
    """Return the decrease of each rank's weight in a step."""
    return [value["weights"][step] - value["weights"][step + 1] for value in run.values]


def per_step(submission: Submission, ranks: Ranks, shares: Sequence[int], reduction: str) -> list[Counter[str]]:
    """Count each rank's collectives in one step: the difference between runs of two steps and of one."""
    once, twice = (trained(submission, ranks, shares, reduction, steps).trace for steps in (1, 2))
    return [twice.collective_counts(rank) - once.collective_counts(rank) for rank in range(len(shares))]


@check(
    points=3,
    todo=1,
    title="all ranks start with the first rank's weights",
    look_at="start_equal: what is sent, and by whom",
)
def start(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    given = [Args(10.0**rank, torch.ones(1), "flat", 0) for rank in range(3)]
    run = ranks(3).call(submission.used_by(steps_of), given)
    expect([value["weights"] for value in run.values], "weights before any step").equals([[1.0]] * 3)
    pair = group_of([1, 2])
    given = [Args(10.0**rank, torch.ones(1), "flat", 0, pair if rank else None) for rank in range(3)]
    run = ranks(3).call(submission.used_by(steps_of), [None, *given[1:]])
    expect([value["weights"] for value in run.values[1:]], "weights in a group of ranks 1 and 2").equals([[10.0]] * 2)
    numbers = [float(number) for number in draw.sample(range(1, 100), 3)]
    for strided in (False, True):
        run = ranks(3).call(submission.used_by(starts), [Args(number, strided) for number in numbers])
        first = [[numbers[0] + place for place in range(6)], [numbers[0]] * 2, [int(numbers[0])]]
        what = f"a weight{', stored transposed,' if strided else ''} and two buffers, before any step"
        expect(run.values, what).equals([first] * 3)


@check(
    points=4,
    todo=3,
    title="a step is the one that a single process takes on the whole batch",
    look_at="the sum of the gradients, and what it is divided by",
)
def one_step(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (4, 1, draw.choice([2, 3, 5])):
        shares = [2] * world_size
        run = trained(submission, ranks, shares)
        what = f"gradient of {world_size} ranks, a digit for each"
        expect(gradient(run), what).equals([digits(shares)] * world_size)
    twice = trained(submission, ranks, [1, 1], steps=2)
    hint = "gradients of the step before are still there: they must be cleared"
    expect(gradient(twice, step=1), "gradient of the second step", look_at=hint).equals([11.0] * 2)


@check(
    points=4,
    todo=3,
    title="unequal shares of the batch count by their samples, empty ones too",
    look_at="the weight of each rank's gradient: its number of samples",
)
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for shares in ([1, 3, 0, 2], draw.sample([1, 2, 4], 3)):
        run = trained(submission, ranks, shares)
        what = f"gradient of ranks with {', '.join(map(str, shares))} samples"
        expect(gradient(run), what).equals([digits(shares)] * len(shares))


@check(
    points=3, todo=3, title="flat: one all-reduce for each step", look_at="what else travels: loss, number of samples"
)
def flat(submission: Submission, ranks: Ranks) -> None:
    counters = per_step(submission, ranks, [1, 2, 1], "flat")
    expect([dict(counter) for counter in counters], "collectives of one step, on ranks 0-2").equals(
        [{"all_reduce": 1}] * 3
    )


@check(
    points=5,
    todo=3,
    title="the other reductions: the same step, in their own ways",
    look_at="add_up: which collectives each reduction is made of",
)
def reductions(submission: Submission, ranks: Ranks) -> None:
    shares = [1, 3, 0, 2]
    for reduction in ("per_parameter", "gather_scatter", "tree"):
        run = trained(submission, ranks, shares, reduction)
        expect(gradient(run), f"gradient with {reduction}, a digit for each rank").equals([digits(shares)] * 4)
    (counts, *_) = per_step(submission, ranks, shares, "gather_scatter")
    expect(dict(counts), "collectives of a step with gather_scatter").equals({"gather": 1, "scatter": 1})
    (counts, *_) = per_step(submission, ranks, shares, "tree")
    expect(dict(counts), "library collectives of a step with tree").equals({})
    sent = sum(run.trace.messages_sent(rank) for rank in range(4))
    expect(sent, "messages of a tree of 4 ranks, up and down").equals(6)


@check(
    points=2,
    todo=3,
    title="frozen, tied and unused parameters",
    look_at="a parameter whose grad is None: on this rank, or on all of them",
)
def parameters(submission: Submission, ranks: Ranks) -> None:
    # gradients are 2, none, none and 1/2; weight decay moves every weight that has a gradient, even if it is 0
    run = ranks(2).call(submission.used_by(odd_parameters), [Args(torch.ones(1), rank == 1) for rank in range(2)])
    wanted = {"plain": -2.75, "frozen": 1.0, "unused": 1.0, "sometimes": -0.5}
    for name, value in wanted.items():
        seen = [rank[name] for rank in run.values]
        expect(seen, f"the weight '{name}' after two steps").equals([value] * 2)


@check(points=2, todo=3, title="metrics: the loss of the whole batch, and the times", look_at="what a step returns")
def metrics(submission: Submission, ranks: Ranks) -> None:
    given = [Args(1.0, x, wait=work("forward", 0.02)) for x in samples([1, 3])]
    run = ranks(2, inter_node="ethernet-10g").call(submission.used_by(steps_of), given)
    expect([value["losses"] for value in run.values], "loss on ranks 0 and 1").equals([[31.0]] * 2)
    for rank, value in enumerate(run.values):
        reducing = [e.end - e.start for e in run.trace.collectives(rank) if e.operation == "all_reduce"]
        expect(
            value["compute"][0], f"compute_seconds of rank {rank}, whose forward takes 0.02", unit="seconds"
        ).at_least(0.02)
        expect(value["communication"][0], f"communication_seconds of rank {rank}", unit="seconds").at_least(
            0.5 * reducing[-1]
        )


@check(
    points=2,
    todo=4,
    title="the learning rate grows with the batch, in a warm-up",
    look_at="the factor at step 0, and at its end",
)
def learning_rate(submission: Submission, ranks: Ranks) -> None:
    cases = {0: 0.1, 5: 0.45, 10: 0.8, 11: 0.8}
    (seen,) = ranks(1).call(submission.used_by(rates), [Args(0.1, 2048, list(cases), 10)]).values
    for rate, (step, wanted) in zip(seen, cases.items(), strict=True):
        expect(rate, f"0.1 for 256 samples, now 2048: at step {step}, with 10 steps of warm-up").close_to(wanted)
    ((rate,),) = ranks(1).call(submission.used_by(rates), [Args(0.1, 512, [0], 0)]).values
    expect(rate, "0.1 for 256 samples, now 512, without a warm-up").close_to(0.2)


HINTS = {
    1: [
        "Two ranks that start from different weights stay different, however well they add up gradients. What does "
        "a model have besides weights that changes its output, such as the running mean of a BatchNorm?",
        "Go through `self.model.parameters()` and `self.model.buffers()`. `tensor.contiguous()` is the tensor "
        "itself, or a copy if it has gaps; what arrives in a copy must be written back.",
        "For each tensor: `sent = tensor.detach().contiguous()`, `dist.broadcast(sent, self.first_rank, "
        "self.group)`, `tensor.detach().copy_(sent)`.",
    ],
    2: [
        "`flat`: `dist.all_reduce(message.flat, group=self.group)`. The others have to leave the same sum in "
        "`message.flat`, on every rank. With `gather_scatter`, which rank adds, and what must it send back?",
        "`dist.gather(tensor, list, dst, group)` fills a list of as many tensors as there are ranks, on the first "
        "rank only; `dist.scatter(tensor, list, src, group)` is its mirror. `tree` is one call of your "
        "`collectives.all_reduce_tree`, and `per_parameter` one all-reduce for each of `message.pieces`.",
        "gather_scatter: `parts = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]` where "
        "`dist.get_rank(group) == 0`, else None; `dist.gather(flat, parts, self.first_rank, group)`; there `sums = "
        "[total] * len(parts)`, with `total` the sum of the parts, else None; `dist.scatter(flat, sums, "
        "self.first_rank, group)`.",
    ],
    3: [
        "Take two ranks with one weight, one sample on rank 0 and three on rank 1. Write down the gradient of the "
        "mean loss on each rank, and the gradient over all four samples. By which numbers do you have to multiply "
        "the two before you add them, and by which do you divide the sum?",
        "A message that carries its own weight needs no second one: let its last element be 1, multiply all of it "
        "by the number of samples, and add up. What is the last element of the sum? A rank without samples sends "
        "zeros, and every rank calls `self.add_up` once.",
        "If `samples`: backward; `part.copy_(gradient)` for each gradient that is not None, `message.present` 1 for "
        "these and 0 for the others; `message.loss.copy_(local_loss.detach())`; `message.weight.fill_(1)`; "
        "`message.flat.mul_(samples)`.",
        "After `self.add_up(message)`: `total = message.weight.item()`, and unless that is 0, "
        "`message.flat.div_(total)`; `loss = message.loss.item()`; `parameter.grad = mean.to(parameter.dtype)` "
        "where `present` is not 0, else None; `self.optimizer.step()`.",
    ],
    4: [
        "With k the ratio of the two batch sizes, the factor is 1 at step 0 and k from step `warmup_steps` on. What "
        "is it halfway?",
        "`learning_rate * (1 + warm * (k - 1))`, where `warm` goes from 0 to 1: `min(1, step / warmup_steps)`, or 1 "
        "without a warm-up.",
    ],
}
