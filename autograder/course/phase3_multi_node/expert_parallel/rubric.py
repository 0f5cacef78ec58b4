"""Hidden rubric of expert_parallel: 25 points, 17 for values and gradients, 8 for messages and work.

A rank gets its own tokens and its own experts; the judge evaluates each token by all experts, in float64. Tokens are
drawn so that no two probabilities near the last choice are alike: rounding decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.expert_parallel.given.dense import dense_moe
from labkit.course.phase3_multi_node.expert_parallel.scenarios import Dense, layered, routed, travelled
from labkit.trace import Kind

HEADERS = 1.1
"""Allowance for TCP's own bytes."""
CLOSE = {"float32": 1e-4, "float64": 1e-11, "bfloat16": 0.06}
WITH_LOSS = CLOSE | {"float64": 1e-6}
"""Of the load-balancing loss and of gradients with it, where shares of choices may be of float32."""
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Capacity factors that binary floating point represents exactly."""
FORBIDDEN = {
    "torch.distributed.nn.functional.all_to_all_single",
    "torch.distributed._functional_collectives.all_to_all_single_autograd",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def scattered(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    kept: Tensor,
    num_experts: int,
    factors: Sequence[float] | None = None,
    gradient: Tensor | None = None,
) -> dict[str, Any]:
    """On a rank: dispatch and combine, where neither tokens nor the gradients of results are contiguous."""
    x, gradient = x.T.contiguous().T, None if gradient is None else gradient.T.contiguous().T
    return travelled(x, experts, weights, kept, num_experts, factors, gradient)


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch

    from labkit.exercises import expert_parallel as ep

    x, router = torch.ones(3, 4), ep.TopKRouter(4, 4, 2)
    routing = router(x)
    tried = {
        "num_experts": lambda: ep.ExpertParallelMoE(4, 4, 5, 1),
        "top_k": lambda: ep.TopKRouter(4, 2, 3),
        "capacity_factor": lambda: ep.TopKRouter(4, 2, 1, 0.0),
        "hidden": lambda: ep.ExpertParallelMoE(4, 0, 4, 1),
        "x": lambda: router(torch.ones(3, 5)),
        "x ": lambda: ep.ExpertParallelMoE(4, 4, 4, 1)(torch.ones(2, 3)),
        "x  ": lambda: ep.dispatch(torch.ones(2, 4), routing),
        "routing": lambda: ep.dispatch(x, routing.experts),
        "journey": lambda: ep.combine([x, x], None),
        "module": lambda: ep.average_gradients([x]),
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


def normal(draw: Draw, *shape: int, dtype: str = "float32") -> Tensor:
    generator = torch.Generator().manual_seed(draw.getrandbits(62))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


def decided(draw: Draw, count: int, gate: Tensor, top_k: int) -> Tensor:
    """Return tokens (count, width) whose choices rounding cannot change."""
    found = normal(draw, 0, gate.shape[1]).to(gate.dtype)
    while len(found) < count:
        x = normal(draw, 64, gate.shape[1]).to(gate.dtype)
        ordered = (x.double() @ gate.double().T).softmax(-1).sort(descending=True).values
        gaps = (ordered[:, :-1] - ordered[:, 1:])[:, :top_k]
        found = torch.cat([found, x[(gaps > 1e-3).all(1)]])
    return found[:count]


class DrawnDense(Dense):
    """All experts in one process, with drawn weights, and so many drawn tokens on each rank."""

    def __init__(
        self,
        draw: Draw,
        tokens: Sequence[int],
        num_experts: int,
        top_k: int,
        factor: float | None = None,
        dtype: str = "float32",
        sizes: tuple[int, int] = (6, 10),
        one_expert: bool = False,
    ) -> None:
        self.dtype, (width, hidden) = dtype, sizes
        gate = normal(draw, num_experts, width, dtype=dtype)
        up = normal(draw, num_experts, width, hidden, dtype=dtype) / 2
        down = normal(draw, num_experts, hidden, width, dtype=dtype) / 2
        inputs = [decided(draw, count, gate, top_k) for count in tokens]
        if one_expert:
            # tokens that are positive multiples of one of them have its order of experts
            one = decided(draw, 1, gate, top_k)
            inputs = [one * (1 + torch.arange(count).view(-1, 1) % 8 / 8).to(one.dtype) for count in tokens]
        gradients = [normal(draw, count, width, dtype=dtype) for count in tokens]
        super().__init__(inputs, gradients, (gate, up, down), top_k, factor)

    def given(self, ranks: Sequence[int], size: int, **options: Any) -> list[Args]:
        """Return the arguments of each of `ranks`, in groups of `size`, `ranks[:size]` and so on."""
        arguments = []
        for place, x in enumerate(self.tokens):
            first = place - place % size
            group, replicas = group_of(ranks[first : first + size]), group_of(ranks[place % size :: size])
            together = {"group": group, "replicas": replicas if len(ranks) > size else None, **options}
            own = self.own(self.up, size)[place], self.own(self.down, size)[place]
            arguments.append(Args(x, self.gate, *own, self.top_k, self.factor, self.gradients[place], **together))
        return arguments

    def rows(self, size: int) -> tuple[list[int], list[int]]:
        """Return how many rows each rank sends, and how many it gets."""
        sent, received = [], [0] * len(self.tokens)
        for place, (x, kept) in enumerate(zip(self.tokens, self.kept, strict=True)):
            experts = (x.double() @ self.gate.double().T).topk(self.top_k).indices
            sent.append(int(kept.sum()))
            for expert in experts[kept].tolist():
                received[place - place % size + expert // (len(self.gate) // size)] += 1
        return sent, received

    def text(self) -> str:
        counts = ", ".join(str(len(x)) for x in self.tokens)
        factor = "dropless" if self.factor is None else f"capacity_factor {self.factor}"
        return f"{len(self.gate)} experts, top_k {self.top_k}, {factor}, {self.dtype}, {counts} tokens on the ranks"

    def compare(self, values: Sequence[Any]) -> None:
        """Expect results and drops, and gradients of the tokens, of all ranks."""
        named = (("out", "results", self.results, CLOSE), ("x", "gradients of x", self.x, WITH_LOSS))
        for name, what, wanted, rel in named:
            expect([value[name] for value in values], f"{what}: {self.text()}").close_to(wanted, rel=rel[self.dtype])
        expect([value["dropped"] for value in values], f"dropped choices: {self.text()}").equals(self.dropped)

    def compare_experts(self, values: Sequence[Any], size: int, scale: float = 1.0) -> None:
        """Expect the gradients of up and down, where each group has all tokens, or gradients are averaged."""
        for name, whole in (("up", self.sums[1]), ("down", self.sums[2])):
            seen = [value[name] for value in values]
            wanted = self.own(whole * scale, size)
            expect(seen, f"gradients of {name}: {self.text()}").close_to(wanted, rel=CLOSE[self.dtype])


def exchanges(run: Run, rank: int) -> list[int]:
    """Return the bytes of a rank's all-to-alls, up to other collectives; expect no messages."""
    expect(run.trace.messages_sent(rank), f"messages that rank {rank} sends").equals(0)
    events = run.trace.collectives(rank)
    expect({e.operation for e in events} <= {"all_to_all"}, "no collective but all_to_all").holds("others")
    return [e.nbytes for e in events]


def wanted_bytes(dense: DrawnDense, size: int, rank: int) -> list[int]:
    """Return the bytes of a rank's all-to-alls: counts; dispatch, combine, and both backward."""
    row = dense.gate.shape[1] * dense.gate.element_size()
    sent, received = (rows[rank] * row for rows in dense.rows(size))
    return [8 * len(dense.gate), sent, received, sent, received]


# Router ---------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=1,
    title="experts, probabilities and the load-balancing loss, with their gradients",
    look_at="TopKRouter.forward: a softmax over all experts; the loss counts choices before drops",
)
def routers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for dtype, factor, count in (
        ("float32", None, draw.randrange(5, 20)),
        ("float64", 0.5, draw.randrange(5, 20)),
        ("bfloat16", None, draw.randrange(5, 20)),
        ("float32", 1.0, 0),
    ):
        num_experts = draw.randrange(3, 9)
        top_k = draw.randrange(1, num_experts)
        gate = normal(draw, num_experts, 6, dtype=dtype)
        x, gradient = decided(draw, count, gate, top_k), normal(draw, count, top_k)
        seen = ranks(1).call(submission.used_by(routed), [Args(x, gate, top_k, factor, gradient)]).values[0]
        inputs, weight = (one.to(torch.float64, copy=True).requires_grad_() for one in (x, gate))
        weights, experts = (inputs @ weight.T).softmax(-1).topk(top_k)
        no_expert = torch.zeros(num_experts, 6, 1, dtype=torch.float64)
        _, loss, _ = dense_moe(inputs, weight, no_expert, no_expert.mT, top_k)
        ((weights * gradient).sum() + loss).backward()
        text = f"{count} tokens of {dtype}, {num_experts} experts, top_k {top_k}"
        wide = torch.promote_types(x.dtype, torch.float32)
        rel = CLOSE["float64" if dtype == "float64" else "float32"]
        expect(seen["experts"], f"experts of {text}").equals(experts)
        expect(seen["weights"], f"probabilities of {text}").close_to(weights.detach().to(wide), rel=rel)
        expect(seen["loss"], f"load-balancing loss of {text}").close_to(loss.detach().to(wide), rel=1e-5)
        for name, wanted in (("x", inputs.grad), ("gate", weight.grad)):
            assert wanted is not None
            expect(seen[name], f"gradient of {name}: {text}").close_to(wanted.to(x.dtype), rel=WITH_LOSS[dtype])


@check(
    points=3,
    todo=1,
    title="drops: first choices before second ones, in the order of the tokens, and counted",
    look_at="TopKRouter.forward: the place of a choice in its expert's queue",
)
def capacity(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for factor in draw.sample(FACTORS, 3):
        num_experts, count = draw.randrange(3, 7), draw.randrange(8, 24)
        top_k = draw.randrange(2, num_experts)
        gate = normal(draw, num_experts, 6)
        x = decided(draw, count, gate, top_k)
        given = Args(x, gate, top_k, factor, normal(draw, count, top_k))
        seen = ranks(1).call(submission.used_by(routed), [given]).values[0]
        no_expert = torch.zeros(num_experts, 6, 1)
        _, _, kept = dense_moe(x, gate, no_expert, no_expert.mT, top_k, factor)
        text = f"{count} tokens, {num_experts} experts, top_k {top_k}, capacity_factor {factor}"
        expect(seen["kept"], f"kept choices of {text}").equals(kept)
        expect(int(seen["dropped"]), f"dropped choices of {text}").equals(int((~kept).sum()))


# Dispatch and combine -------------------------------------------------------------------------------------------------


class Choices:
    """Random choices of experts on each rank, and what must come of them."""

    def __init__(self, draw: Draw, world_size: int, each: int, top_k: int, dtype: str, busy: bool, drop: bool) -> None:
        self.world_size, self.num_experts, self.top_k, self.dtype = world_size, world_size * each, top_k, dtype
        # busy: all choose the same experts
        counts = [draw.randrange(5, 10) for _ in range(world_size)]
        if world_size > 2:
            counts[draw.randrange(world_size)] = 0
        same = draw.sample(range(self.num_experts), top_k)
        self.experts = [
            torch.tensor(
                [same if busy else draw.sample(range(self.num_experts), top_k) for _ in range(count)],
                dtype=torch.int64,
            ).view(count, top_k)
            for count in counts
        ]
        self.kept = [
            torch.tensor([not drop or draw.random() < 0.6 for _ in range(x.numel())], dtype=torch.bool).view(x.shape)
            for x in self.experts
        ]
        kind = torch.promote_types(getattr(torch, dtype), torch.float32)
        self.x = [normal(draw, count, 4, dtype=dtype) for count in counts]
        self.gradients = [normal(draw, count, 4, dtype=dtype) for count in counts]
        self.weights = [normal(draw, count, top_k).to(kind) for count in counts]
        self.factors = [1.0 + draw.randrange(1, 32) / 8 for _ in range(self.num_experts)]

    def given(self, back: bool) -> list[Args]:
        each = self.num_experts // self.world_size
        return [
            Args(
                self.x[r],
                self.experts[r],
                self.weights[r],
                self.kept[r],
                self.num_experts,
                self.factors[r * each :][:each] if back else None,
                self.gradients[r] if back else None,
            )
            for r in range(self.world_size)
        ]

    def batch(self, expert: int) -> Tensor:
        """Return the rows of one expert: by rank, and by token."""
        pairs = zip(self.x, self.experts, self.kept, strict=True)
        return torch.cat([x[((experts == expert) & kept).any(1)] for x, experts, kept in pairs])

    def expect_batches(self, values: Sequence[Any]) -> None:
        each = self.num_experts // self.world_size
        for rank, value in enumerate(values):
            expect(len(value["batches"]), "batches of a rank").equals(each)
            for number, seen in enumerate(value["batches"]):
                expert = rank * each + number
                expect(seen, f"rows of expert {expert}, {self.text()}").equals(self.batch(expert))

    def expect_combined(self, values: Sequence[Any]) -> None:
        rel = CLOSE[self.dtype]
        factors = torch.tensor(self.factors)
        for rank, value in enumerate(values):
            x, weights = self.x[rank].double(), self.weights[rank].double()
            scale = torch.where(self.kept[rank], factors[self.experts[rank]], 0).double()
            dtype, text = self.x[rank].dtype, f"of rank {rank}, {self.text()}"
            total = (scale * weights).sum(1, keepdim=True)
            gradient = self.gradients[rank].double()
            expect(value["out"], f"results {text}").close_to((x * total).to(dtype), rel=rel)
            expect(value.get("x"), f"gradients of tokens {text}").close_to((gradient * total).to(dtype), rel=rel)
            wanted = (scale * (x * gradient).sum(1, keepdim=True)).to(self.weights[rank].dtype)
            expect(value.get("weights"), f"gradients of weights {text}").close_to(wanted, rel=rel)

    def text(self) -> str:
        counts = ", ".join(str(len(x)) for x in self.x)
        return f"{self.num_experts} experts, top_k {self.top_k}, {self.dtype}, {counts} tokens on the ranks"


CASES = ((False, False), (False, True), (True, False))
"""Random choices; some dropped; all tokens with the same experts."""


@check(
    points=3,
    todo=2,
    title="each expert gets exactly its tokens, by rank and by token, in two all-to-alls",
    look_at="dispatch: experts without rows, ranks without tokens, dropped choices",
)
def dispatched(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [1, *draw.sample([2, 3, 4], 2)]
    for world_size, (busy, drop) in zip(sizes, reversed(CASES), strict=True):
        dtype = draw.choice(["float32", "float64"])
        choices = Choices(draw, world_size, draw.randrange(2, 4), 1 if busy else 2, dtype, busy, drop)
        run = ranks(world_size).call(submission.used_by(scattered, travelled), choices.given(back=False))
        choices.expect_batches(run.values)
        for rank in range(world_size):
            row = 4 * choices.x[rank].element_size()
            wanted = [8 * choices.num_experts, row * int(choices.kept[rank].sum())]
            what = f"bytes of rank {rank}'s all-to-alls, counts and rows, {choices.text()}"
            expect(exchanges(run, rank), what, unit="bytes").equals(wanted)


@check(
    points=3,
    todo=3,
    title="rows are back at their tokens and weighted, and so are gradients",
    look_at="combine: the order of the choices; weights, with their gradient; backward exchanges",
)
def combined(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [1, *draw.sample([2, 3, 4], 2)]
    for world_size, (busy, drop) in zip(sizes, reversed(CASES), strict=True):
        dtype = "bfloat16" if world_size == 1 else draw.choice(["float32", "float64"])
        choices = Choices(draw, world_size, draw.randrange(2, 4), 1 if busy else 2, dtype, busy, drop)
        run = ranks(world_size).call(submission.used_by(scattered, travelled), choices.given(back=True))
        choices.expect_combined(run.values)


# The layer ------------------------------------------------------------------------------------------------------------


@check(
    points=4,
    todo=3,
    title="the layer equals all experts in one process, with all gradients",
    look_at="ExpertParallelMoE.forward, and what takes part in backward where no row comes",
)
def layers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, dtype, one_expert in (
        (1, "float32", False),
        (2, "bfloat16", False),
        (3, "float64", True),
        (4, "float32", False),
    ):
        num_experts, top_k = 2 * world_size + 2 * (world_size == 1), 1 if one_expert else 2
        tokens, factor = [draw.randrange(4, 9) for _ in range(world_size)], None
        if world_size == 4:
            # room for one choice of each expert, and many choices
            num_experts, top_k, factor = 4, 2, 0.25
        if world_size > 2:
            tokens[draw.randrange(world_size)] = 0
        dense = DrawnDense(draw, tokens, num_experts, top_k, factor, dtype, one_expert=one_expert)
        given = dense.given(range(world_size), world_size)
        run = ranks(world_size).call(submission.used_by(layered), given)
        dense.compare(run.values)
        dense.compare_experts(run.values, world_size)
        seen = torch.stack([value["gate"] for value in run.values]).sum(0)
        expect(seen, f"gradient of the gate, added up: {dense.text()}").close_to(dense.sums[0], rel=WITH_LOSS[dtype])
        for rank in range(world_size):
            what = f"bytes of rank {rank}'s all-to-alls: counts; rows there and back; both backward; {dense.text()}"
            expect(exchanges(run, rank), what, unit="bytes").equals(wanted_bytes(dense, world_size, rank))


@check(points=1, todo=3, title="groups of some of the ranks", look_at="`group` in every exchange")
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    members = sorted(draw.sample(range(4), 2))
    dense = DrawnDense(draw, [draw.randrange(8, 13) for _ in members], 4, 2)
    given: list[Any] = [None] * 4
    for rank, arguments in zip(members, dense.given(members, 2), strict=True):
        given[rank] = arguments
    run = ranks(4).call(submission.used_by(layered), given)
    dense.compare([run.values[rank] for rank in members])
    dense.compare_experts([run.values[rank] for rank in members], 2)


@check(
    points=3,
    todo=3,
    title="an expert computes the rows that were sent to it, and no other",
    look_at="which rows each expert computes: no padding, no tokens of other experts",
)
def computed(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for one_expert in (False, True):
        world_size = draw.choice([2, 3, 4])
        tokens = [draw.randrange(16, 25) for _ in range(world_size)]
        dense = DrawnDense(draw, tokens, 2 * world_size, 1, sizes=(8, 64), one_expert=one_expert)
        options: dict[str, Any] = {"mark": work("mark", 1e-6), "row": work("row", 1e-3), "flops": 2 * 2.0 * 8 * 64}
        run = ranks(world_size).call(submission.used_by(layered), dense.given(range(world_size), world_size, **options))
        dense.compare(run.values)
        dense.compare_experts(run.values, world_size)
        _, received = dense.rows(world_size)
        for rank in range(world_size):
            events = run.trace.of(rank, Kind.COMPUTE)
            marks = sorted(e.start for e in events if e.operation == "mark")
            rows = [sum(e.operation == "row" and a <= e.start < b for e in events) for a, b in pairwise(marks)]
            # a router with few experts takes little
            for number, times, name in ((0, 1, "forward"), (1, 2, "backward")):
                what = f"work of rank {rank} {name}, in rows of an expert forward: {dense.text()}"
                expect(rows[number], what).at_most(times * (received[rank] + 0.15 * tokens[rank]) + 1)


# Data parallelism -----------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=4,
    title="gradients of the mean loss over all ranks; experts are sent to replicas only",
    look_at="average_gradients: which gradients are summed over which ranks; what divides",
)
def averaged(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for size, copies, outsiders in ((2, 2, 1), (3, 1, 0), (1, 2, 0)):
        members = sorted(draw.sample(range(size * copies + outsiders), size * copies))
        dense = DrawnDense(draw, [draw.randrange(6, 11) for _ in members], 2 * size, 1)
        options = {"all_ranks": group_of(members) if outsiders else None, "average": True}
        given: list[Any] = [None] * (len(members) + outsiders)
        for rank, arguments in zip(members, dense.given(members, size, **options), strict=True):
            given[rank] = arguments
        run = ranks(len(given)).call(submission.used_by(layered), given)
        values = [run.values[rank] for rank in members]
        dense.compare(values)
        dense.compare_experts(values, size, 1 / len(members))
        seen, wanted = [value["gate"] for value in values], [dense.sums[0] / len(members)] * len(members)
        expect(seen, f"gradients of the gate: {dense.text()}").close_to(wanted, rel=CLOSE["float32"])
        least = 4 * dense.gate.numel() + (copies > 1) * 4 * 2 * dense.up.numel() // size
        for rank in members:
            nbytes = sum(e.nbytes for e in run.trace.collectives(rank) if e.operation != "all_to_all")
            what = f"bytes of rank {rank}'s other collectives; experts spread over {size} of {len(members)} ranks"
            expect(nbytes + run.trace.bytes_sent(rank), what, unit="bytes").at_most(least)


# For all --------------------------------------------------------------------------------------------------------------


@check(points=1, todo=4, title="bad arguments raise ValueError", look_at="the given lines at the beginning must stay")
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    # who does nothing raises nothing either
    dense = DrawnDense(draw, [3, 4], 2, 1)
    while (rows := dense.rows(2))[0] == rows[1]:  # as many each way: splits could be taken one for the other
        dense = DrawnDense(draw, [3, 4], 2, 1)
    dense.compare(ranks(2).call(submission.used_by(layered), dense.given(range(2), 2, average=True)).values)
    cases = ["num_experts", "top_k", "capacity_factor", "hidden", "x", "x ", "x  ", "routing", "journey", "module"]
    run = ranks(2).call(submission.used_by(misused), [Args(cases)] * 2)
    for value in run.values:
        for case, seen in zip(cases, value, strict=True):
            expect(seen.startswith(f"ValueError: {case.strip()}"), f"ValueError that begins with {case}").holds(seen)
    expect(len(run.trace.collectives()), "collectives before an error").equals(0)


@check(
    points=1,
    todo=4,
    title="real processes: rows travel twice forward and twice backward, and no others do",
    look_at="what is sent beside the rows",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    tokens = [draw.randrange(150, 250) for _ in range(3)]
    dense = DrawnDense(draw, tokens, 6, 2, sizes=(256, 8))
    run = ranks.processes(3).call(submission.used_by(layered), dense.given(range(3), 3))
    dense.compare(run.values)
    dense.compare_experts(run.values, 3)
    stay = 0
    for rank, x in enumerate(dense.tokens):
        experts = (x.double() @ dense.gate.double().T).topk(2).indices
        stay += int((experts // 2 == rank).sum())
    least = 4 * (2 * sum(tokens) - stay) * 256 * 4
    what = "bytes that all ranks sent, by the kernel"
    expect(run.bytes_on_the_wire, what, unit="bytes").at_most(HEADERS * least)
