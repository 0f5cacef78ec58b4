"""Visible checks and hints of gradient_accumulation: one weight, so that a wrong number can be traced by hand.

The model is one weight w, its loss the mean of w * x, so the gradient is the mean of the inputs x. Each microbatch of a
window has its own digit: the samples of the i-th one, counted over the ranks, are 10 ** i times the window's number of
samples. A gradient of 1031 means that the first and last of four have one sample, the second three, the third none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, NotMeasurable, Ranks, Submission, check, expect, group_of
from labkit.clusters import Run
from labkit.units import size

Shares = Sequence[Sequence[int]]
"""Number of samples of each rank's microbatches in one window."""


def accumulated(
    microbatches: list[Tensor],
    steps: int,
    counted: bool = True,
    max_norm: Any = None,
    flush: int = 0,
    group: Any = None,
    handed: bool = False,
) -> Any:
    """On a rank: with a weight of 1 and learning rate 1, call `backward` and `step` for each microbatch, then flush.

    Returns the results of `step` and `flush`, and the weight after each. An empty microbatch has no `backward`, or, if
    `handed`, one with a loss of NaN and 0 samples.
    """
    import torch
    from torch import nn

    from labkit.exercises import gradient_accumulation

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rank = gradient_accumulation.GradientAccumulator(model, optimizer, steps, max_norm=max_norm, group=group)
    weights, said = [model.weight.item()], []
    for inputs in microbatches:
        if len(inputs) or handed:
            samples = {"samples": len(inputs)} if counted else {}
            rank.backward(model(inputs[:, None]).mean(), **samples)
        said.append(rank.step())
        weights.append(model.weight.item())
    for _ in range(flush):
        said.append(rank.flush())
        weights.append(model.weight.item())
    return {"weights": weights, "said": said}


def one_backward(inputs: Tensor) -> Any:
    """On a rank: with a weight of 1, call `backward` once; return its value, and whether it has a graph."""
    import torch
    from torch import nn

    from labkit.exercises import gradient_accumulation

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    rank = gradient_accumulation.GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), 2)
    loss = rank.backward(model(inputs[:, None]).mean(), samples=len(inputs))
    return (
        {"loss": loss.item(), "graph": loss.requires_grad}
        if isinstance(loss, torch.Tensor)
        else {"loss": loss, "graph": None}
    )


def odd_parameters(inputs: Tensor, used: list[bool]) -> Any:
    """On a rank: run two windows of two microbatches on a model with unusual weights; return the final weights."""
    import torch
    from torch import nn

    from labkit.exercises import gradient_accumulation

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.frozen, self.unused, self.sometimes = (nn.Parameter(torch.ones(1)) for _ in range(4))
            self.tied = self.plain
            self.frozen.requires_grad_(False)

        def forward(self, inputs: torch.Tensor, branch: bool) -> torch.Tensor:
            outputs = inputs * (self.plain + self.tied) + self.frozen
            return outputs + inputs * self.sometimes if branch else outputs

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    rank = gradient_accumulation.GradientAccumulator(model, optimizer, 2)
    for branch in used * 2:
        rank.backward(model(inputs, branch).mean())
        rank.step()
    return {name: parameter.item() for name, parameter in model.named_parameters()}


def wide(steps: int) -> None:
    """On a rank: run one window of a model with as many weights as activations."""
    import torch
    from torch import nn

    from labkit.exercises import gradient_accumulation

    model = nn.Sequential(nn.Linear(8, 2000), nn.Tanh(), nn.Linear(2000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = gradient_accumulation.GradientAccumulator(model, optimizer, steps)
    losses = []
    for _ in range(steps):
        losses.append(rank.backward(model(torch.ones(8, 8)).mean()))
        rank.step()


def window(shares: Shares) -> list[list[Tensor]]:
    """Return the samples of each rank's microbatches: one digit per microbatch, times the total number of samples."""
    total = sum(map(sum, shares))
    return [
        [torch.full((share,), float(total * 10 ** (rank * len(row) + i))) for i, share in enumerate(row)]
        for rank, row in enumerate(shares)
    ]


def digits(shares: Shares) -> float:
    """Return the mean over all samples of the window."""
    return float(sum(share * 10**i for i, share in enumerate(share for row in shares for share in row)))


def on_ranks(submission: Submission, ranks: Ranks, microbatches: Sequence[list[Tensor]], steps: int, **kw: Any) -> Run:
    given = [Args(mine, steps, **kw) for mine in microbatches]
    return ranks(len(given)).call(submission.used_by(accumulated), given)


def fell(run: Run, first: int, last: int) -> list[float]:
    """Return the decrease of each rank's weight from after microbatch `first` to after microbatch `last`."""
    return [value["weights"][first] - value["weights"][last] for value in run.values]


@check(
    points=1,
    todo=1,
    title="backward returns the loss, without its graph",
    look_at="what backward returns: the loss detached, and not multiplied",
)
def returns(submission: Submission, ranks: Ranks) -> None:
    (result,) = ranks(1).call(submission.used_by(one_backward), [Args(torch.full((2,), 3.0))]).values
    expect(result["loss"], "what backward() returned, for a loss of 3 over 2 samples").equals(3.0)
    expect(result["graph"], "the returned loss has a graph").equals(False)


@check(
    points=1,
    todo=2,
    title="inside a window step returns False, and no weight moves",
    look_at="when step calls flush: at the window's end only",
)
def inside(submission: Submission, ranks: Ranks) -> None:
    run = on_ranks(submission, ranks, [window([[1, 1, 1]])[0][:2]], 3, counted=False)
    expect(run.values[0]["said"], "what step() returned for two microbatches of three").equals([False, False])
    expect(fell(run, 0, 2), "how far the weight has moved before the window's end").equals([0.0])


@check(
    points=3,
    todo=4,
    title="one rank: a window is the mean of its microbatches, then the next one begins",
    look_at="what backward adds, what the sum is divided by, and what is cleared at the end",
)
def one_rank(submission: Submission, ranks: Ranks) -> None:
    run = on_ranks(submission, ranks, [window([[1, 1, 1]])[0] * 2], 3, counted=False)
    expect(run.values[0]["said"], "what step() returned, microbatch by microbatch").equals([False, False, True] * 2)
    expect(fell(run, 0, 3), "gradient of the window, a digit for each microbatch").equals([111.0])
    hint = "what the window before has left: grad, number of microbatches, number of samples"
    expect(fell(run, 3, 6), "gradient of the second window", look_at=hint).equals([111.0])


@check(
    points=3,
    todo=4,
    title="several ranks: the gradient is that of one process with all microbatches",
    look_at="the sum over the ranks, and what it is divided by",
)
def all_ranks(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, steps in ((2, 3), (3, 2), draw.choice([(4, 1), (2, 2), (1, 4)])):
        shares = [[1] * steps] * world_size
        run = on_ranks(submission, ranks, window(shares), steps, counted=False)
        what = f"gradient of a window of {steps} microbatches on {world_size} ranks, a digit for each"
        expect(fell(run, 0, steps), what).equals([digits(shares)] * world_size)
    given = [Args([torch.full((1,), 10.0**rank)] * 2, 2, group=group_of([1, 2])) if rank else None for rank in range(3)]
    run = ranks(3).call(submission.used_by(accumulated), given)
    seen = [value["weights"][0] - value["weights"][2] for value in run.values[1:]]
    expect(seen, "gradient in a group of ranks 1 and 2, whose samples are 10 and 100").equals([55.0] * 2)


@check(
    points=4,
    todo=4,
    title="nothing is sent but one all-reduce at the window's end",
    look_at="where you communicate; number of samples and `present` travel with the gradients",
)
def communication(submission: Submission, ranks: Ranks) -> None:
    mine = window([[1] * 3] * 2)
    runs = {n: on_ranks(submission, ranks, [(m * 2)[:n] for m in mine], 3) for n in (0, 2, 3, 6)}
    counters = {n: [run.trace.collective_counts(rank) for rank in range(2)] for n, run in runs.items()}

    def more(after: int, before: int) -> list[dict[str, int]]:
        return [dict(Counter(a) - Counter(b)) for a, b in zip(counters[after], counters[before], strict=True)]

    expect(more(2, 0), "collectives of the first two microbatches of three, on ranks 0 and 1").equals([{}] * 2)
    expect(more(3, 2), "collectives at the window's end").equals([{"all_reduce": 1}] * 2)
    expect(more(6, 3), "collectives of the next window").equals([{"all_reduce": 1}] * 2)


@check(
    points=3,
    todo=4,
    title="unequal microbatches count by their samples, empty ones too",
    look_at="`samples`: in backward, and in what the sum is divided by",
)
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for shares in ([[1, 3], [0, 2]], [draw.sample([1, 2, 4], 3), [0, 0, 5]]):
        run = on_ranks(submission, ranks, window(shares), len(shares[0]))
        what = f"gradient of ranks with {' and '.join(map(str, shares))} samples, a digit for each microbatch"
        expect(fell(run, 0, len(shares[0])), what).equals([digits(shares)] * len(shares))
    run = on_ranks(submission, ranks, window([[2, 0], [0, 1]]), 2, handed=True)
    what = "gradient of ranks with [2, 0] and [0, 1] samples, where backward(NaN, samples=0) is called"
    expect(fell(run, 0, 2), what).equals([digits([[2, 0], [0, 1]])] * 2)


@check(
    points=3,
    todo=4,
    title="flush ends a window that is not full, and does nothing when there is none",
    look_at="how many microbatches and samples the window really had",
)
def partial(submission: Submission, ranks: Ranks) -> None:
    mine = [full + rest for full, rest in zip(window([[1] * 3] * 2), window([[1, 1], [1, 1]]), strict=True)]
    run = on_ranks(submission, ranks, mine, 3, flush=2)
    for rank, value in enumerate(run.values):
        wanted = [False, False, True, False, False, True, False]
        what = f"what step() five times, then flush() twice returned on rank {rank}, with windows of 3"
        expect(value["said"], what).equals(wanted)
    expect(fell(run, 3, 6), "gradient of a last window of 2 microbatches, a digit for each").equals(
        [digits([[1, 1]] * 2)] * 2
    )
    expect(fell(run, 6, 7), "how far a second flush() moves the weight").equals([0.0] * 2)
    once, twice = (on_ranks(submission, ranks, mine, 3, flush=n).trace for n in (1, 2))
    for rank in range(2):
        more = Counter(twice.collective_counts(rank)) - Counter(once.collective_counts(rank))
        expect(dict(more), f"collectives of a second flush() on rank {rank}").equals({})


@check(
    points=4,
    todo=4,
    title="the window's gradient is clipped by its norm; one that is not finite moves no rank",
    look_at="when the norm is taken: after the sum over the ranks, and of what the optimizer will see",
)
def clipping(submission: Submission, ranks: Ranks) -> None:
    opposite = [[torch.full((1,), 12.0)] * 2, [torch.full((1,), -6.0)] * 2]
    run = on_ranks(submission, ranks, opposite, 2, max_norm=4.0)
    expect(fell(run, 0, 2), "gradient of 12 and -6, whose mean is 3, with max_norm=4").equals([3.0] * 2)
    run = on_ranks(submission, ranks, opposite, 2, max_norm=2.0)
    for rank, seen in enumerate(fell(run, 0, 2)):
        expect(seen, f"gradient of 12 and -6, whose mean is 3, with max_norm=2, on rank {rank}").close_to(2.0, rel=1e-4)
    bad = [[torch.ones(1), torch.full((1,), float("nan")), *[torch.ones(1)] * 2], [torch.ones(1)] * 4]
    run = on_ranks(submission, ranks, bad, 2)
    hint = "is the norm finite? All ranks know it after the sum"
    what = "how far a window with a NaN on rank 0 moves the weights"
    expect(fell(run, 0, 2), what, look_at=hint).equals([0.0] * 2)
    said = [value["said"] for value in run.values]
    hint = "True says that the optimizer has stepped: what `flush` returns, and `step` after it"
    wanted = [[False, False, False, True]] * 2
    expect(said, "what step() returned, with a NaN in the first window", look_at=hint).equals(wanted)
    expect(fell(run, 2, 4), "gradient of the next window", look_at="what is left of the NaN").equals([1.0] * 2)


@check(
    points=2,
    todo=4,
    title="frozen, tied and unused parameters",
    look_at="a parameter whose grad is None: on this rank, or on all of them",
)
def parameters(submission: Submission, ranks: Ranks) -> None:
    # gradients are 2, none, none and 1/4; weight decay moves every weight that has a gradient, even if it is 0
    given = [Args(torch.ones(1), [False, rank == 1]) for rank in range(2)]
    run = ranks(2).call(submission.used_by(odd_parameters), given)
    wanted = {"plain": -2.75, "frozen": 1.0, "unused": 1.0, "sometimes": -0.125}
    for name, value in wanted.items():
        seen = [rank[name] for rank in run.values]
        expect(seen, f"the weight '{name}' after two windows").equals([value] * 2)


@check(
    points=1,
    todo=4,
    title="memory is that of one microbatch, however long the window",
    look_at="what is kept from one microbatch to the next: gradients, added up in place, and nothing else",
)
def memory(submission: Submission, ranks: Ranks) -> None:
    short, long = (
        ranks(1, account=True).call(submission.used_by(wide), [Args(steps)]).trace.peak_memory(0) for steps in (2, 8)
    )
    if not short:
        raise NotMeasurable("memory is counted on virtual ranks")
    expect(long, f"peak memory with 8 microbatches in a window, {size(short)} with 2", unit="bytes").at_most(
        1.1 * short
    )


HINTS = {
    1: [
        "Two microbatches on one rank, the first with one sample, the second with three. Write down the gradient of "
        "each mean loss, and that over all four samples. By what do you multiply the two before autograd adds them "
        "into `grad`, and by what do you divide at the end? Nothing changes when they are on two ranks.",
        "The gradient of `loss * samples` is `samples` times that of `loss`. The window's end divides by the number "
        "of samples, so count them in `self.samples`. A loss over no samples is NaN, and NaN times 0 is NaN.",
        "If `samples`: `(loss * samples).backward()` and `self.samples += samples`. In any case `return "
        "loss.detach()`.",
    ],
    2: [
        "The window ends with the microbatch that makes `self.microbatches` equal to `self.steps`. What does `step` "
        "return before that?",
        "`self.microbatches += 1`; if they are `self.steps` now, return what `self.flush()` returns, else False.",
    ],
    3: [
        "`steps` is not what you divide by: the last window of an epoch may be shorter, and microbatches unequal. "
        "Let each rank count its own samples; their sum over the ranks travels as the last element of the message.",
        "A rank writes into the views of the message: its gradients into `parts`, 1 into `present` for each "
        "parameter that has one, its count into `samples`. After one all-reduce of `message.flat` each view holds "
        "the sum over the ranks.",
        "For each `part` and its `parameter.grad` that is not None `part.copy_(parameter.grad)`; `message.present` "
        "is 1 for these; `message.samples.fill_(self.samples)`; `dist.all_reduce(message.flat, group=self.group)`; "
        "`message.gradient.div_(message.samples)`; `norm = message.gradient.norm().item()`.",
    ],
    4: [
        "Go through what must be as at the beginning when the next window starts: the gradients, and two counts. "
        "That is so too when the norm is not finite. What must not happen then?",
        "Where `present` is 0 after the sum, no rank had a gradient, and `grad` must be None: an optimizer with "
        "weight decay moves a parameter whose gradient is 0. Clip the mean over all ranks, which is what the "
        "optimizer will see.",
        "If `math.isfinite(norm)`: multiply `message.gradient` by `self.max_norm / norm` if there is a max_norm and "
        "the norm is larger; `parameter.grad = part.to(parameter.dtype)` where `present` is not 0, else None; "
        "`self.optimizer.step()`. Whether or not: `self.model.zero_grad()`, both counts back to 0, and return "
        "whether it was finite.",
    ],
}
