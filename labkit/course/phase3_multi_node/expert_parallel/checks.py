"""Visible checks and hints of expert_parallel.

Routers here have an identity for their gate, so a token's numbers are its experts' logits. Where tokens travel, a row
is its rank and its number, [2, 5] for token 5 of rank 2, and expert e multiplies it by e + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Ranks, Submission, check, expect, group_of
from labkit.clusters import Run
from labkit.course.phase3_multi_node.expert_parallel.scenarios import Dense, layered, routed, travelled

# What the checks read -------------------------------------------------------------------------------------------------

Choices = Sequence[Sequence[Sequence[int]]]
"""Experts of each token of each rank; ~e is a choice of expert e that is dropped."""


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbered(rank: int, tokens: int) -> Tensor:
    """Return a rank's tokens: each row is the rank and the number of the token."""
    return torch.tensor([[rank, token] for token in range(tokens)], dtype=torch.float32).view(tokens, 2)


def journeys(choices: Choices, num_experts: int, top_k: int, back: bool = False) -> list[Args]:
    """Return the arguments of `travelled` for each rank. Weights are 1, 2, 3, ... of each rank's choices."""
    given, each = [], num_experts // len(choices)
    for rank, of_rank in enumerate(choices):
        experts = torch.tensor(of_rank, dtype=torch.int64).view(len(of_rank), top_k)
        kept = experts >= 0
        weights = 1 + torch.arange(experts.numel(), dtype=torch.float32).view(experts.shape)
        experts, x = torch.where(kept, experts, ~experts), numbered(rank, len(of_rank))
        factors = range(rank * each + 1, rank * each + each + 1)
        returned = {"factors": list(factors), "gradient": torch.ones_like(x)} if back else {}
        given.append(Args(x, experts, weights, kept, num_experts, **returned))
    return given


def route(submission: Submission, ranks: Ranks, logits: Tensor, top_k: int, factor: float | None = None) -> Any:
    """Return what a router decides for tokens with these logits."""
    given = Args(logits, torch.eye(logits.shape[1]), top_k, factor)
    return ranks(1).call(submission.used_by(routed), [given]).values[0]


def rows_of(choices: Choices, expert: int) -> Tensor:
    """Return the rows that an expert must get: by rank, and of each rank by token."""
    rows = [[r, t] for r, tokens in enumerate(choices) for t, of_token in enumerate(tokens) if expert in of_token]
    return torch.tensor(rows, dtype=torch.float32).view(len(rows), 2)


def dense(tokens: Sequence[int], num_experts: int, top_k: int, factor: float | None, seed: int) -> Dense:
    """Return all experts in one process, for so many tokens on each rank."""
    inputs = [normal(count, 6, seed=seed + rank) for rank, count in enumerate(tokens)]
    gradients = [normal(count, 6, seed=seed + 50 + rank) for rank, count in enumerate(tokens)]
    gate, up = (normal(*shape, seed=seed + 90) for shape in ((num_experts, 6), (num_experts, 6, 8)))
    return Dense(inputs, gradients, (gate, up, normal(num_experts, 8, 6, seed=seed + 91)), top_k, factor)


def layers(dense: Dense, size: int, average: bool = False) -> list[Args]:
    """Return the arguments of `layered` for ranks in groups of `size` that lie side by side."""
    ranks, arguments = len(dense.tokens), []
    experts = zip(dense.own(dense.up, size), dense.own(dense.down, size), strict=True)
    for rank, (x, gradient, (up, down)) in enumerate(zip(dense.tokens, dense.gradients, experts, strict=True)):
        group = None if size == ranks else group_of(range(rank - rank % size, rank - rank % size + size))
        replicas = None if size == ranks else group_of(range(rank % size, ranks, size))
        options = {"group": group, "replicas": replicas, "average": average}
        arguments.append(Args(x, dense.gate, up, down, dense.top_k, dense.factor, gradient, **options))
    return arguments


def exchanges(run: Run, rank: int) -> list[int]:
    """Return the bytes of a rank's all-to-alls; expect no other collectives, and no messages."""
    events = run.trace.collectives(rank)
    expect({e.operation for e in events} - {"all_to_all"}, f"other collectives of rank {rank}").equals(set())
    expect(run.trace.messages_sent(rank), f"messages that rank {rank} sends beside them").equals(0)
    return [e.nbytes for e in events]


# Checks ---------------------------------------------------------------------------------------------------------------


@check(points=2, todo=1, title="a token's experts, and their probabilities", look_at="softmax first, then `topk`")
def choices(submission: Submission, ranks: Ranks) -> None:
    odds = torch.tensor([[1.0, 6, 2, 1], [4, 1, 2, 3], [1, 1, 3, 5]])
    for top_k in (1, 2, 4):
        seen = route(submission, ranks, odds[:2].log(), top_k)
        values, experts = (odds[:2] / 10).topk(top_k)
        what = f"of tokens with odds 1:6:2:1 and 4:1:2:3, top_k {top_k}"
        # in the first row two experts are equally probable
        expect(seen["weights"], f"probabilities {what}").close_to(values, rel=1e-5)
        if top_k < 4:
            expect(seen["experts"], f"experts {what}").equals(experts)
    seen = route(submission, ranks, odds.double().log(), 2)
    expect(seen["weights"], "probabilities of float64 tokens").close_to((odds.double() / 10).topk(2).values)
    expect(seen["kept"], "kept choices, without capacity_factor").equals(torch.ones(3, 2, dtype=torch.bool))


@check(
    points=3,
    todo=1,
    title="the load-balancing loss is 1 at its least, and larger for busy experts",
    look_at="num_experts * sum of (share of the choices) * (mean probability)",
)
def balance(submission: Submission, ranks: Ranks) -> None:
    three = torch.tensor([[8.0, 1, 1], [1, 8, 1], [1, 1, 8]])
    for odds, what, wanted in (
        (three, "three tokens, each with another expert", 1.0),
        (three[[0, 0, 0]], "three tokens with the same expert, probability 0.8", 3 * 0.8),
        (three[[0, 0, 1]], "two tokens with one expert, one with another", 3 * (2 / 3 * 1.7 / 3 + 1 / 3 * 1.0 / 3)),
        (three[:0], "no tokens", 0.0),
    ):
        seen = route(submission, ranks, odds.log(), 1)
        expect(seen["loss"], f"loss of {what}").close_to(torch.tensor(wanted), rel=1e-5)
    odds = torch.tensor([[6.0, 3, 1], [1, 6, 3]])
    for factor in (None, 0.5):
        seen = route(submission, ranks, odds.log(), 2, factor)
        hint = "shares count all choices of a token, also dropped ones"
        wanted = 3 * (0.25 * 0.35 + 0.5 * 0.45 + 0.25 * 0.2)
        what = f"loss of two tokens with odds 6:3:1 and 1:6:3, top_k 2, capacity_factor {factor}"
        expect(seen["loss"], what, look_at=hint).close_to(torch.tensor(wanted), rel=1e-5)
        hint = "the mean probability has a gradient, and the share has none"
        expect(float(seen["gate"].abs().sum()) > 0, "the loss has a gradient for the gate", look_at=hint).holds("zero")


@check(
    points=3,
    todo=1,
    title="full experts: all first choices before second ones, in the order of the tokens",
    look_at="`chosen.cumsum(0)` is the place of each choice in its expert's queue",
)
def capacity(submission: Submission, ranks: Ranks) -> None:
    # first and second choices of four tokens: 0 1, 0 1, 1 0, 0 2
    odds = torch.tensor([[6.0, 3, 1], [6, 3, 1], [3, 6, 1], [6, 1, 3]])
    for factor, room, kept in (
        (0.7, 2, [[1, 1], [1, 0], [1, 0], [0, 1]]),
        (1.0, 3, [[1, 1], [1, 1], [1, 0], [1, 1]]),
        (0.1, 1, [[1, 0], [0, 0], [1, 0], [0, 1]]),
    ):
        seen = route(submission, ranks, odds.log(), 2, factor)
        wanted = torch.tensor(kept, dtype=torch.bool)
        what = f"of tokens with choices 0 1, 0 1, 1 0, 0 2, and room for {room}"
        expect(seen["kept"], f"kept choices {what}").equals(wanted)
        expect(int(seen["dropped"]), f"dropped choices {what}").equals(int((~wanted).sum()))


@check(
    points=4,
    todo=2,
    title="each expert gets the tokens that chose it",
    look_at="dispatch: which token a choice belongs to, and which rows are which expert's",
)
def batches(submission: Submission, ranks: Ranks) -> None:
    for what, num_experts, top_k, choices in (
        ("as many for each expert, top_k 1", 2, 1, [[[0], [1]], [[1], [0]]]),
        ("two experts each, top_k 2", 4, 2, [[[3, 0], [1, 2], [0, 1]], [[2, 0], [3, 1], [0, 2]]]),
        ("some more, some none", 6, 1, [[[5], [0], [5]], [], [[4], [1], [4], [0]]]),
        ("all for one expert", 4, 1, [[[1], [1]], [[1], [1], [1]]]),
        ("two dropped", 4, 2, [[[3, ~0], [1, 2]], [[~2, 0], [3, 1]]]),
    ):
        run = ranks(len(choices)).call(submission.used_by(travelled), journeys(choices, num_experts, top_k))
        each = num_experts // len(choices)
        for rank, value in enumerate(run.values):
            rows = [rows_of(choices, rank * each + number) for number in range(each)]
            expect(len(value["batches"]), "batches, one for each expert of a rank").equals(each)
            for number, (seen, wanted) in enumerate(zip(value["batches"], rows, strict=True)):
                text = f"rows [rank, token] of expert {rank * each + number} on rank {rank}; {what}: {choices}"
                expect(seen, text).equals(wanted)


@check(
    points=2,
    todo=2,
    title="a row for each kept choice, and not one more",
    look_at="dispatch: two all-to-alls, the first of counts, the second with unequal splits",
)
def dispatched_bytes(submission: Submission, ranks: Ranks) -> None:
    choices: Choices = [[[3, ~0], [1, 2], [1, ~2]], [[1, 0]]]
    run = ranks(2).call(submission.used_by(travelled), journeys(choices, 4, 2))
    for rank, rows in ((0, 4), (1, 2)):
        what = f"bytes of rank {rank}'s all-to-alls: counts of 4 experts, then {rows} rows of 2 float32"
        expect(exchanges(run, rank), what, unit="bytes").equals([32, 8 * rows])


@check(
    points=4,
    todo=3,
    title="results are back at their tokens, in a weighted sum",
    look_at="combine: rows in the order in which they came, then in the order of the choices",
)
def combined(submission: Submission, ranks: Ranks) -> None:
    for what, num_experts, top_k, choices in (
        ("top_k 1", 2, 1, [[[0], [1]], [[1], [0]]]),
        ("top_k 2", 4, 2, [[[3, 0], [1, 2], [0, 1]], [[2, 0], [3, 1], [0, 2]]]),
        ("some more, some none", 6, 1, [[[5], [0], [5]], [], [[4], [1], [4], [0]]]),
        ("three dropped", 4, 2, [[[3, ~0], [1, 2]], [[~2, ~0], [3, 1]]]),
    ):
        given = journeys(choices, num_experts, top_k, back=True)
        run = ranks(len(choices)).call(submission.used_by(travelled), given)
        for rank, (value, of_rank) in enumerate(zip(run.values, choices, strict=True)):
            experts = torch.tensor(of_rank, dtype=torch.float32).view(len(of_rank), top_k)
            factors = torch.where(experts >= 0, experts + 1, 0)
            weights = given[rank].args[2]
            text = f"of rank {rank}, {what}: tokens [rank, token] with choices {of_rank}, expert e multiplies by e + 1"
            x = numbered(rank, len(of_rank))
            expect(value["out"], f"results {text}").close_to(x * (factors * weights).sum(1, keepdim=True))
            hint = "_Exchange.backward: rows go back to where they came from"
            gradient = torch.ones_like(x) * (factors * weights).sum(1, keepdim=True)
            expect(value["x"], f"gradients of tokens {text}", look_at=hint).close_to(gradient)
            hint = "combine: weights are multiplied after the exchange, with their gradient"
            gradient = factors * x.sum(1, keepdim=True)
            expect(value["weights"], f"gradients of weights {text}", look_at=hint).close_to(gradient)
            sent = sum(choice >= 0 for token in of_rank for choice in token)
            each = num_experts // len(choices)
            came = sum(c // each == rank for some in choices for token in some for c in token if c >= 0)
            text = f"bytes of rank {rank}'s all-to-alls: counts; {sent} rows, {came} back; the same backward"
            wanted = [8 * num_experts, 8 * sent, 8 * came, 8 * sent, 8 * came]
            expect(exchanges(run, rank), text, unit="bytes").equals(wanted)


@check(
    points=4,
    todo=3,
    title="the layer equals all experts in one process, also its gradients",
    look_at="ExpertParallelMoE.forward: router, dispatch, experts, combine",
)
def layer(submission: Submission, ranks: Ranks) -> None:
    for size, tokens, num_experts, top_k, factor in (
        (1, [4], 3, 2, None),
        (2, [5, 3], 4, 2, None),
        (3, [4, 0, 6], 6, 1, 0.8),
        (2, [3, 2, 4, 1], 2, 1, None),
    ):
        alone = dense(tokens, num_experts, top_k, factor, seed=7)
        run = ranks(len(tokens)).call(submission.used_by(layered), layers(alone, size))
        where = f"on {len(tokens)} ranks" + (f" in groups of {size}" if size < len(tokens) else "")
        text = f"{num_experts} experts, top_k {top_k}, capacity_factor {factor}, {where}, {tokens} tokens"
        for name, tensors in (("out", alone.results), ("x", alone.x)):
            what = f"{'results' if name == 'out' else 'gradients of x'}: {text}"
            expect([value[name] for value in run.values], what).close_to(tensors, rel=1e-5)
        expect([value["dropped"] for value in run.values], f"dropped choices: {text}").equals(alone.dropped)
        if size == len(tokens):
            for name, whole in (("up", alone.sums[1]), ("down", alone.sums[2])):
                what = f"gradients of {name}, from the losses of all ranks: {text}"
                expect([value[name] for value in run.values], what).close_to(alone.own(whole, size), rel=1e-5)
            hint = "the gate's gradient comes from the weights, and from the loss"
            what = f"gradients of the gate, added up over ranks: {text}"
            gate = sum(value["gate"] for value in run.values)
            expect(gate, what, look_at=hint).close_to(alone.sums[0], rel=1e-5)


@check(
    points=3,
    todo=4,
    title="averaged gradients are those of the mean loss over all ranks",
    look_at="average_gradients: which ranks have a part of a gradient; all are divided by the same number",
)
def averaged(submission: Submission, ranks: Ranks) -> None:
    for size, tokens in ((2, [5, 3]), (2, [3, 2, 4, 1]), (1, [3, 4])):
        alone = dense(tokens, 2, 1, None, seed=20)
        run = ranks(len(tokens)).call(submission.used_by(layered), layers(alone, size, average=True))
        gate, up, down = (total / len(tokens) for total in alone.sums)
        text = f"on {len(tokens)} ranks, experts spread over {size}"
        wanted = {"gate": [gate] * len(tokens), "up": alone.own(up, size), "down": alone.own(down, size)}
        for name, tensors in wanted.items():
            seen = [value[name] for value in run.values]
            expect(seen, f"gradients of {name} {text}").close_to(tensors, rel=1e-5)
        for rank in range(len(tokens)):
            sent = sum(e.nbytes for e in run.trace.collectives(rank) if e.operation != "all_to_all")
            experts = 0 if size == len(tokens) else sum(8 * x.numel() // 2 // size for x in (alone.up, alone.down))
            what = f"bytes of rank {rank}'s all-reduces, {text}: the gate's gradient, and experts with other replicas"
            hint = "gradients of experts are sent to replicas only"
            expect(sent, what, look_at=hint, unit="bytes").equals(4 * gate.numel() + experts)


HINTS = {
    1: [
        "On paper: two tokens, three experts, probabilities 0.6 0.3 0.1 and 0.1 0.6 0.3, top_k 2. Which choices are "
        "there, first ones first? Which share of them has each expert, and which mean probability? With room for "
        "one, which choices are dropped?",
        "`topk` gives probabilities and experts, (tokens, top_k) each. Transposed and flattened, first choices come "
        "first. Compared with `torch.arange(num_experts)` they make `chosen`, (choices, num_experts): its mean over "
        "rows is the shares, and its cumulative sum, at a choice's own expert, is the choice's place in the queue.",
        "`weights, experts = probabilities.topk(self.top_k, dim=-1)`; `choices = experts.T.reshape(-1, 1)`; `chosen "
        "= choices == torch.arange(self.num_experts, device=x.device)`; `loss = self.num_experts * (shares * "
        "means).sum()`; `kept = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T`. "
        "Divide by `max(len(x), 1)`: there may be no tokens.",
    ],
    2: [
        "Two ranks, two experts each. Rank 0 has three tokens, with experts 3 0, 1 2 and 0 1: write down the rows "
        "that it sends, in the order of the experts. Rank 1 sends some, too. In which order do all of them arrive "
        "at rank 0, and which of them are for its expert 0?",
        "`to_send[r]` has the rows for each expert of rank r, so rank r gets `sum(to_send[r])` of them. Sort the "
        "choices by expert; choice c is one of token `c // top_k`; dropped ones get the number `num_experts`, so "
        "that they come last and are cut off. What arrives is sorted by rank, then by expert: `arange(own "
        "experts).repeat(ranks).repeat_interleave(...)` names each row's expert, and a stable sort does the rest. "
        "Backward, the gradient of a row goes where the row came from: the same exchange, with the splits swapped.",
        "`order = choices.argsort(stable=True)[: sum(map(sum, to_send))]`; `rows = apply_in_group(_Exchange, x[order "
        "// top_k], [*map(sum, to_send)], [*map(sum, to_receive)], group)`; `experts = "
        "torch.arange(received.shape[1]).repeat(ranks).repeat_interleave(received.flatten(), "
        "output_size=len(rows))`; `arrival = experts.argsort(stable=True)`; `list(rows[arrival].split([*map(sum, "
        "zip(*to_receive))]))`. In `_Exchange`: `dist.all_to_all_single(result, x.contiguous(), receive, send, "
        "group=group)`; backward `apply_in_group(_Exchange, grad, ctx.receive, ctx.send, ctx.group), None, None, "
        "None`.",
    ],
    3: [
        "`combine` is `dispatch` backwards: in which order must rows be so that each rank gets its own ones, in the "
        "order in which it sent them? And which weight belongs to the n-th row that comes back?",
        "Concatenated batches are `rows[arrival]`; indexed with `arrival.argsort()` they are in the order of "
        "arrival. The exchange has the splits of `dispatch`, swapped. The n-th row that comes back belongs to "
        "choice `order[n]`: to token `order[n] // top_k`, with the weight `weights.flatten()[order[n]]`. Several "
        "rows may belong to one token: `index_add`.",
        "`rows = torch.cat(outputs)[journey.arrival.argsort()]`; `rows = apply_in_group(_Exchange, rows, [*map(sum, "
        "journey.received)], [*map(sum, journey.sent)], journey.group)`; `weighted = rows * "
        "routing.weights.flatten()[order, None]`; `torch.zeros(len(routing.experts), rows.shape[1], "
        "dtype=weighted.dtype).index_add(0, order // top_k, weighted).to(rows.dtype)`. The layer: `self.routing = "
        "self.router(tokens)`, `dispatch`, `self.experts(batches)`, `combine`, `view_as(x)`.",
    ],
    4: [
        "Four ranks, two groups of two. Rank 0 has a copy of expert 0. From which ranks' losses does its gradient "
        "come already, before anything is averaged? Which rank has the rest? And for the router?",
        "The mean loss is the sum of the ranks' losses, divided by their number. The router's gradient is that of "
        "one rank's loss: sum it over all ranks. An expert's has the losses of its group of experts: sum it over its "
        "replicas. Divide both by the number of all ranks.",
        "`experts = {parameter for layer in module.modules() if isinstance(layer, given.Experts) for parameter in "
        "layer.parameters()}`; for each parameter with a gradient `dist.all_reduce(parameter.grad, group=group)`, or "
        "for experts, unless `replicas` is None, `dist.all_reduce(parameter.grad, group=replicas)`; then "
        "`parameter.grad /= dist.get_world_size(group)`.",
    ],
}
