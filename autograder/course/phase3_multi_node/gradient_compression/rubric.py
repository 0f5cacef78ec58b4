"""Hidden rubric of gradient_compression: 25 points, 15 for values and states and 10 for traffic, time and training.

Results over several steps are followed from what only the judge knows, the gradients of all ranks: which part of their
mean has arrived, and which must still come. So a residual that is lost, shared or counted twice shows in what arrives,
whatever the ranks report of their state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.gradient_compression.scenarios import Spec, compressed, reduced
from labkit.data import digits
from labkit.hardware import LINKS

LINK = "ethernet-10g"
CLOSE = 1e-4
"""Tolerance of float32 after a few steps; sums over ranks may come in any order."""
HEADERS = 1.1
"""Allowance for TCP's own bytes and for the messages that find out who is where."""
FORBIDDEN = {
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.powerSGD_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.batched_powerSGD_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks.quantization_perchannel_hook",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""

Steps = Sequence[Sequence[Sequence[Tensor]]]
"""Gradients: by step, by rank, by parameter."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def hooked(spec: Spec, factors: list[Tensor], named: bool, bucket_cap_mb: float, backward: Any = None) -> Any:
    """On a rank: torch's DDP with the hook. The gradient of layer i's weight in a step is `factors[step][i]`."""
    import torch
    from torch import nn

    from labkit.exercises import gradient_compression

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(factors[0].shape[1:]))

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            if backward is not None:
                backward()
            return gradient

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(len(factors[0])))

        def forward(self, each: Tensor) -> Tensor:
            total = torch.zeros((), requires_grad=True)
            for layer, factor in zip(self.layers, each, strict=True):
                total = Waits.apply(total) + (layer.weight * factor).sum()  # type: ignore[no-untyped-call]
            return total

    model = Layers()
    compressor = getattr(gradient_compression, spec[0])(**spec[1])
    parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    arguments = [model] if named else []
    parallel.register_comm_hook(None, gradient_compression.compression_hook(compressor, *arguments))
    means = []
    for factor in factors:
        model.zero_grad()
        parallel(factor).backward()
        means.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    return {"means": means, "names": sorted(compressor.state)}


def trained(spec: Spec | None, steps: int) -> list[Tensor]:
    """On a rank: train on the digits, each rank on its own half of each batch; return the weights."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from labkit.data import digits
    from labkit.exercises import gradient_compression

    torch.manual_seed(0)
    images, labels = digits("train").tensors
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    chosen = torch.Generator().manual_seed(1)
    if spec is not None:
        compressor = getattr(gradient_compression, spec[0])(**spec[1])
        optimizer = gradient_compression.CommunicationOptimizer(compressor)
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=chosen)
        part = batch.chunk(dist.get_world_size())[dist.get_rank()]
        sgd.zero_grad()
        nn.functional.cross_entropy(model(images[part].flatten(1)), labels[part]).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        if spec is None:
            for gradient in gradients.values():
                dist.all_reduce(gradient.div_(dist.get_world_size()))
        else:
            optimizer.all_reduce_compressed(gradients)
        sgd.step()
    return [parameter.detach() for parameter in model.parameters()]


# What must arrive -----------------------------------------------------------------------------------------------------


def normal(draw: Draw, *shape: int) -> Tensor:
    """Return standard normal numbers: no two have the same magnitude, and they cannot be compressed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw.getrandbits(62)))


def gradients_of(draw: Draw, steps: int, world_size: int, *shapes: tuple[int, ...]) -> list[list[list[Tensor]]]:
    """Draw the gradients of each step, rank and parameter."""
    return [[[normal(draw, *shape) for shape in shapes] for _ in range(world_size)] for _ in range(steps)]


def kept(spec: Spec, numel: int) -> int:
    """Return how many elements of a tensor a sparse compressor sends: the ratios drawn here are exact in binary."""
    return -int(-spec[1]["ratio"] * numel // 1)


def decoded(spec: Spec, tensor: Tensor) -> Tensor:
    """Return what the receivers make of TopK's or OneBit's message for `tensor`."""
    if spec[0] == "OneBit":
        return torch.where(tensor >= 0, 1.0, -1.0) * tensor.abs().sum() / max(1, tensor.numel())
    flat = tensor.flatten()
    places = flat.abs().argsort(descending=True)[: kept(spec, flat.numel())]
    return torch.zeros_like(flat).scatter(0, places, flat[places]).view(tensor.shape)


def arrived(spec: Spec, steps: Steps, seen: Steps, what: str = "") -> None:
    """Expect on each rank, step by step, what this compressor makes of the ranks' gradients and residuals."""
    kind = f"{spec[0]}{what}"
    for index in range(len(steps[0][0])):
        rests = [torch.zeros_like(gradients[index]) for gradients in steps[0]]
        rest = torch.zeros_like(rests[0])
        before: Tensor | None = None
        # an element that is 0 but for rounding has either sign, and among very many some are as large as the smallest
        # that is kept: what follows from these is not compared
        sure = torch.ones_like(rest, dtype=torch.bool)
        for step, (given, found) in enumerate(zip(steps, seen, strict=True)):
            mean = found[0][index]
            text = f"{kind}: mean gradient {index} of step {step}"
            expect([own[index] for own in found], f"{text}, on every rank the same").equals([mean] * len(found))
            own = [gradients[index] + one for gradients, one in zip(given, rests, strict=True)]
            whole = torch.stack([gradients[index] for gradients in given]).mean(0) + rest
            if spec[0] in ("TopK", "OneBit"):
                if spec[0] == "OneBit" and step:
                    sure &= torch.stack(own).abs().amin(0) > 1e-3
                if spec[0] == "TopK" and mean.numel() > 100:
                    for one in own:
                        least = one.abs().flatten().sort(descending=True).values[kept(spec, one.numel()) - 1]
                        sure &= (one.abs() - least).abs() > 1e-5
                sent = [decoded(spec, one) for one in own]
                wanted = torch.stack(sent).mean(0)
                expect(torch.where(sure, mean, wanted), text).close_to(wanted, rel=CLOSE)
                rests = [one - part for one, part in zip(own, sent, strict=True)]
            elif spec[0] == "RandomK":
                expect(int((mean != 0).sum()), f"{text}: elements").equals(kept(spec, mean.numel()))
                expect(mean, text).close_to(torch.where(mean != 0, whole, 0), rel=CLOSE)
            elif spec[0] == "Quantized":
                largest = max(float(gradients[index].abs().max()) for gradients in given) if mean.numel() else 0.0
                unit = 1.02 * largest / (2 ** (spec[1].get("bits", 8) - 1) - 2)
                off = float((mean - whole).abs().max()) if mean.numel() else 0.0
                expect(off, f"{text}: largest error").at_most(0.75 * unit + 1e-6)
            else:
                expect(mean, text).close_to(projected(spec[1]["rank"], whole, mean, before), rel=1e-3)
            rest, before = whole - mean, mean


def projected(rank: int, whole: Tensor, mean: Tensor, before: Tensor | None) -> Tensor:
    """Return what PowerSGD makes of the mean of M: its projection on the columns of M Q.

    Q of the first step is any; later it spans the rows of the result before.
    """
    n = whole.shape[0] if whole.dim() else 1
    m = whole.shape[1:].numel()
    if rank * (n + m) >= n * m:
        return whole
    matrix = whole.reshape(n, m)
    if before is None:
        basis = torch.linalg.svd(mean.reshape(n, m)).U[:, :rank]
    else:
        rows = torch.linalg.svd(before.reshape(n, m)).Vh[:rank]
        basis = torch.linalg.qr(matrix @ rows.T).Q
    wanted: Tensor = basis @ (basis.T @ matrix)
    return wanted.view(whole.shape)


def by_step(run: Run) -> list[list[list[Tensor]]]:
    """Return the results of `reduced` as they were given: by step, by rank."""
    return [list(ranks) for ranks in zip(*run.values, strict=True)]


def ran(
    submission: Submission, ranks: Ranks, spec: Spec, steps: Steps, *args: Any, hardware: Any = None, **kwargs: Any
) -> Run:
    """Run `reduced` on as many ranks as there are gradients; compare with what must arrive."""
    world_size = len(steps[0])
    given = [Args(spec, [step[rank] for step in steps], *args, **kwargs) for rank in range(world_size)]
    run = ranks(world_size, **(hardware or {})).call(submission.used_by(reduced), given)
    arrived(spec, steps, by_step(run))
    return run


def single(
    submission: Submission, ranks: Ranks, spec: Spec, gradients: list[Tensor], names: list[str] | None = None
) -> Any:
    """Return what `compressed` finds."""
    run = ranks(1).call(submission.used_by(compressed), [Args(spec, names or ["weight"] * len(gradients), gradients)])
    return run.values[0]


def specs(draw: Draw) -> list[Spec]:
    """Draw one compressor of each kind."""
    return [
        ("TopK", {"ratio": draw.choice([0.125, 0.25])}),
        ("RandomK", {"ratio": draw.choice([0.125, 0.25]), "seed": draw.randrange(1000)}),
        ("OneBit", {}),
        ("Quantized", {"bits": draw.choice([4, 8]), "block": draw.choice([16, 50])}),
        ("PowerSGD", {"rank": draw.choice([2, 3])}),
    ]


# Values and states ----------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=3,
    title="the residual is gradient minus what was sent, bit for bit",
    look_at="compress: the sum that is encoded, and the same sum minus `decompress`",
)
def feedback(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for spec in specs(draw):
        gradients = [normal(draw, 12, 20) for _ in range(4)]
        value = single(submission, ranks, spec, gradients)
        rest = torch.zeros(12, 20)
        for step, gradient in enumerate(gradients):
            whole = gradient + rest if step else gradient
            rest = whole - value["meant"][step]
            seen = value["residuals"][step]
            expect(seen if seen is not None else "none", f"{spec[0]}: residual after step {step}").equals(rest)
        arrived(spec, [[[one]] for one in gradients], [[[one]] for one in value["meant"]])


@check(points=1, todo=2, title="TopK: the largest magnitudes, 8 bytes each", look_at="TopK.encode")
def top_k(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    spec = ("TopK", {"ratio": draw.choice([0.01, 0.03, 0.3])})
    gradient = normal(draw, draw.randrange(20, 30), 41)
    value = single(submission, ranks, spec, [gradient])
    expect(value["meant"][0], "what the message means").equals(decoded(spec, gradient))
    nbytes = sum(part.nbytes for part in value["messages"][0])
    expect(nbytes, "bytes of the message", unit="bytes").at_most(8 * kept(spec, gradient.numel()))


@check(
    points=2,
    todo=4,
    title="RandomK: the same places on all ranks, without sending them",
    look_at="RandomK.encode: what the places follow from",
)
def random_k(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, seed = draw.choice([2, 3]), draw.randrange(1000)
    spec = ("RandomK", {"ratio": 0.25, "seed": seed})
    steps = gradients_of(draw, 12, world_size, (10, 16), (10, 16))
    run = ran(submission, ranks, spec, steps)
    events = run.trace.collectives(0)
    expect({event.operation for event in events}, "collectives").equals({"all_reduce"})
    expect({event.nbytes for event in events}, "bytes of each: values alone").equals({2 * 40 * 4})
    places = [[tuple((mean != 0).flatten().tolist()) for mean in step] for step in run.values[0]]
    flat = [one for step in places for one in step]
    expect(len(set(flat)), "different choices of places, in 12 steps of 2 parameters").equals(24)
    chosen = int(torch.tensor(flat).any(0).sum())
    expect(chosen, "places of 160 that were chosen once or more, of 24 times a quarter of them").at_least(150)
    other = single(submission, ranks, ("RandomK", {"ratio": 0.25, "seed": seed + 1}), [steps[0][0][0]])
    differ = tuple((other["meant"][0] != 0).flatten().tolist()) != places[0][0]
    expect(differ, "another seed chooses other places").equals(True)


@check(points=1, todo=2, title="OneBit: packed bits and one number", look_at="OneBit.encode: `given.pack`")
def one_bit(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    gradient = normal(draw, 7, draw.randrange(11, 20))
    gradient[0, :3] = 0
    value = single(submission, ranks, ("OneBit", {}), [gradient])
    expect(value["meant"][0], "what the message means").close_to(decoded(("OneBit", {}), gradient))
    nbytes = sum(part.nbytes for part in value["messages"][0])
    expect(nbytes, "bytes of the message", unit="bytes").at_most(-(-gradient.numel() // 8) + 4)


@check(points=1, todo=2, title="Quantized: a unit for each block", look_at="Quantized.encode: rows, units, bits")
def quantized(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for bits in (8, 4, 2):
        block, largest = draw.choice([10, 32]), 2 ** (bits - 1) - 1
        gradient = normal(draw, draw.randrange(5, 9), 31)
        # rows of very different size, and one of zeros
        gradient *= 10.0 ** torch.arange(-2, len(gradient) - 2)[:, None]
        gradient[2] = 0
        value = single(submission, ranks, ("Quantized", {"bits": bits, "block": block}), [gradient])
        meant = value["meant"][0].flatten()
        for number, row in enumerate(gradient.flatten().split(block)):
            unit = float(row.abs().max()) / largest
            part = meant[number * block : (number + 1) * block]
            text = f"{bits} bits: block {number} of {block}"
            expect(float((part - row).abs().max()), f"{text}: largest error, in its own unit").at_most(
                0.5001 * unit + 1e-12
            )
            if unit:
                multiples = part / unit
                expect(multiples, f"{text}: multiples of its unit").close_to(multiples.round(), rel=CLOSE)
        blocks = -(-gradient.numel() // block)
        nbytes = sum(part.nbytes for part in value["messages"][0])
        expect(nbytes, f"{bits} bits: bytes of the message", unit="bytes").at_most(
            -(-gradient.numel() * bits // 8) + 4 * blocks
        )


@check(
    points=3,
    todo=4,
    title="PowerSGD: orthonormal P, warm Q, means over the ranks in both rounds",
    look_at="PowerSGD.rounds: what is yielded, and what the next step begins with",
)
def power_sgd(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    rank = draw.choice([2, 3])
    spec = ("PowerSGD", {"rank": rank})
    gradients = [normal(draw, 14, 9) for _ in range(2)]
    value = single(submission, ranks, spec, gradients)
    for p, _ in value["messages"]:
        expect(p.T @ p, "Pᵀ P").close_to(torch.eye(rank), rel=CLOSE)
    steps = gradients_of(draw, 4, draw.choice([2, 3]), (14, 9), (6, 5, 3))
    run = ran(submission, ranks, spec, steps)
    for event, columns in zip(run.trace.collectives(0), [14 + 6, 9 + 15] * 4, strict=True):
        expect(event.operation, "collective of a round").equals("all_reduce")
        expect(event.nbytes, "bytes of a round: a factor of each matrix", unit="bytes").equals(4 * rank * columns)


@check(
    points=1,
    todo=4,
    title="each parameter has its own state, in whatever order it comes",
    look_at="`self.state[name]`",
)
def parameters(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for spec in (specs(draw)[0], ("OneBit", {}), ("PowerSGD", {"rank": 2})):
        steps = gradients_of(draw, 4, 2, (8, 10), (8, 10), (80,))
        orders = [draw.sample(range(3), 3) for _ in range(4)]
        ran(submission, ranks, spec, steps, orders, draw.choice([0.0003, 0.0005]))


@check(
    points=2,
    todo=3,
    title="a checkpoint on new ranks goes on as if nothing had happened",
    look_at="everything that a later step needs must be in `self.state`",
)
def checkpoint(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for spec in specs(draw):
        gradients = [normal(draw, 12, 15) for _ in range(6)]
        names = ["first", "second"] * 3
        whole = single(submission, ranks, spec, gradients, names)
        ranks.renew()
        first = single(submission, ranks, spec, gradients[:3], names[:3])
        ranks.renew()
        arguments = Args(spec, names[3:], gradients[3:], first["state"])
        (second,) = ranks(1).call(submission.used_by(compressed), [arguments]).values
        expect(second["meant"], f"{spec[0]}: what is sent after the restart").equals(whole["meant"][3:])
        expect(second["residuals"], f"{spec[0]}: residuals after the restart").equals(whole["residuals"][3:])


@check(
    points=1,
    todo=4,
    title="scalars, empty tensors, vectors, many dimensions",
    look_at="what `encode` does with no element, or with one",
)
def shapes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for spec in specs(draw):
        steps = gradients_of(draw, 2, 2, (), (0,), (3, 0, 2), (1,), (7,), (1, 9), (5, 1), (2, 3, 4, 5))
        ran(submission, ranks, spec, steps)
        ran(submission, ranks, spec, gradients_of(draw, 1, 2, (0, 4)))
        value = single(submission, ranks, spec, [torch.zeros(0, 4), normal(draw)], ["empty", "scalar"])
        expect(value["meant"][0], f"{spec[0]}: an empty tensor by itself").equals(torch.zeros(0, 4))


@check(
    points=1,
    todo=4,
    title="other dtypes, and a group of some of the ranks",
    look_at="the dtype of messages and residuals; `group` in both collectives, and in the number of ranks",
)
def dtypes_and_groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for spec in specs(draw):
        # digits below float32's stay in what is sent or in the residual
        value = single(submission, ranks, spec, [normal(draw, 9, 8).double() / 3])
        expect(value["meant"][0].dtype, f"{spec[0]}: of a float64 gradient").equals(torch.float64)
        short = normal(draw, 9, 8).bfloat16()
        value = single(submission, ranks, spec, [short])
        expect(value["meant"][0].dtype, f"{spec[0]}: of a bfloat16 gradient").equals(torch.bfloat16)
        expect(value["residuals"][0], f"{spec[0]}: its residual").equals(short - value["meant"][0])
        order = draw.sample(range(5), 5)
        parts = [sorted(order[:2]), sorted(order[2:])]
        mine = {rank: part for part in parts for rank in part}
        steps = gradients_of(draw, 2, 5, (6, 8))
        given = [Args(spec, [step[r] for step in steps], group=group_of(mine[r])) for r in range(5)]
        run = ranks(5).call(submission.used_by(reduced), given)
        for part in parts:
            seen = [[step[r] for r in part] for step in by_step(run)]
            arrived(spec, [[step[r] for r in part] for step in steps], seen, " in a group")


# Traffic and time -----------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=4,
    title="one collective for each bucket and round, of the message's bytes",
    look_at="exchange: `rounds.message`, and nothing else",
)
def traffic(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, count = draw.choice([3, 4]), draw.choice([3, 4])
    ratio, block, rank = 0.125, 40, 2
    numel = 40 * 64
    cases: list[tuple[Spec, str, list[int]]] = [
        (("TopK", {"ratio": ratio}), "all_gather", [numel]),
        (("RandomK", {"ratio": ratio, "seed": 3}), "all_reduce", [numel // 2]),
        (("OneBit", {}), "all_gather", [numel // 8 + 4]),
        (("Quantized", {"block": block}), "all_gather", [numel + 4 * numel // block]),
        (("PowerSGD", {"rank": rank}), "all_reduce", [4 * rank * 40, 4 * rank * 64]),
    ]
    for spec, operation, rounds in cases:
        for size in (25.0, 0.0001):
            steps = gradients_of(draw, 2, world_size, *[(40, 64)] * count)
            run = ran(submission, ranks, spec, steps, None, size)
            wanted = [nbytes * count for nbytes in rounds] if size > 1 else rounds * count
            for number in range(world_size):
                events = run.trace.collectives(number)
                text = f"{spec[0]}, buckets of {size} MB"
                names = {event.operation.removesuffix("_into_tensor") for event in events}
                expect(names, f"{text}: collectives of rank {number}").equals({operation})
                seen = sorted(event.nbytes for event in events)
                expect(seen, f"{text}: bytes of rank {number}'s collectives in 2 steps").equals(sorted(wanted * 2))
            expect(sum(run.trace.messages_sent(r) for r in range(world_size)), "messages beside them").equals(0)


@check(
    points=1,
    todo=4,
    title="buckets travel while the backward pass goes on",
    look_at="all_reduce_compressed: when a bucket begins, and when the first wait is",
)
def overlap(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    numel, count = 400_000, 4
    message = LINKS[LINK].seconds(numel)
    for spec in (("Quantized", {"block": 10_000}), ("PowerSGD", {"rank": 40})):
        seconds = {}
        for enabled in (True, False):
            steps = gradients_of(draw, 1, 2, *[(1000, numel // 1000)] * count)
            given = [Args(spec, [steps[0][r]], None, 1.0, enabled, work("backward", 2 * message)) for r in range(2)]
            run = ranks(2, inter_node=LINK).call(submission.used_by(reduced), given)
            seconds[enabled] = run.trace.seconds
            if spec[0] == "Quantized":
                arrived(spec, steps, by_step(run))
        hidden = (count - 1) * (message if spec[0] == "Quantized" else 0.1 * message)
        expect(seconds[False] - seconds[True], f"{spec[0]}: seconds saved by overlap", unit="seconds").at_least(
            0.7 * hidden
        )
        expect(seconds[True], f"{spec[0]}: seconds with overlap", unit="seconds").at_most(2 * message * (count + 1.2))


@check(
    points=2,
    todo=4,
    title="hierarchical: only compressed messages between nodes, from several ranks of each",
    look_at="hierarchical_all_reduce: whose buckets are exchanged, and in which group",
)
def hierarchical(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    layouts = [[[0, 1], [2, 3], [4, 5]], draw.choice([[[0, 1, 2], [3, 4]], [[0, 2, 4], [1, 3]]])]
    for nodes, spec in zip(layouts * 3, specs(draw), strict=False):
        world_size = sum(map(len, nodes))
        owners = [[node[k] for node in nodes] for k in range(2)]
        steps = gradients_of(draw, 2, world_size, *[(16, 20)] * 4)
        across = {rank: group for group in owners for rank in group}
        given = [
            Args(
                *(spec, [step[rank] for step in steps], None, 0.0001),
                intra=group_of(next(node for node in nodes if rank in node)),
                inter=group_of(across[rank]) if rank in across else None,
            )
            for rank in range(world_size)
        ]
        run = ranks(world_size).call(submission.used_by(reduced), given)
        # the mean over nodes of each node's sum, in proportion
        sums = [
            [
                [torch.stack([step[r][i] for r in node]).sum(0) * (len(nodes) / world_size) for i in range(4)]
                for node in nodes
            ]
            for step in steps
        ]
        arrived(spec, sums, by_step(run), f" on nodes {nodes}")
        for group in owners:
            for rank in group:
                inside = next(node for node in nodes if rank in node)
                events = [e for e in run.trace.collectives(rank) if set(run.trace.groups[e.group]) - set(inside)]
                large = [event for event in events if event.nbytes > 16]
                expect({tuple(run.trace.groups[e.group]) for e in large}, "groups across nodes").equals({tuple(group)})
                sent_bytes = sum(event.nbytes for event in large)
                most = {"OneBit": 44, "Quantized": 320 + 80, "PowerSGD": 36 * 3 * 4}
                if "ratio" in spec[1]:
                    most[spec[0]] = kept(spec, 320) * (8 if spec[0] == "TopK" else 4)
                # two buckets of its own in each of two steps
                expect(sent_bytes, f"{spec[0]}: bytes that rank {rank} sends to other nodes", unit="bytes").at_most(
                    4 * most[spec[0]]
                )
        left = [rank for rank in range(world_size) if rank not in across]
        for rank in left:
            inside = next(node for node in nodes if rank in node)
            crossing = [e for e in run.trace.collectives(rank) if set(run.trace.groups[e.group]) - set(inside)]
            expect(len(crossing), f"collectives across nodes of rank {rank}, which owns nothing").equals(0)


@check(
    points=2,
    todo=4,
    title="torch's DDP trains with the hook: means, overlap, names",
    look_at="compression_hook: names, the group, and what the future waits for",
)
def hook(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for spec in specs(draw):
        world_size, layers = 2, 4
        steps = gradients_of(draw, 4, world_size, *[(12, 16)] * layers)
        named = draw.choice([True, False]) if spec[0] != "TopK" else True
        given = [
            Args(spec, [torch.stack(step[r]) for step in steps], named, draw.choice([0.0001, 0.001, 25]))
            for r in range(world_size)
        ]
        given[1].args = (*given[1].args[:3], given[0].args[3])
        run = ranks(world_size).call(submission.used_by(hooked), given)
        seen = [[value["means"][number] for value in run.values] for number in range(4)]
        arrived(spec, steps, seen, " in DDP")
        if named:
            wanted = sorted(f"layers.{number}.weight" for number in range(layers))
            expect(run.values[0]["names"], f"{spec[0]}: parameters with a state").equals(wanted)
    numel = 300_000
    message = LINKS[LINK].seconds(numel)
    factors = [normal(draw, 4, numel) for _ in range(2)]
    given = [Args(("Quantized", {"block": 10_000}), [own], True, 1.0, work("backward", 2 * message)) for own in factors]
    run = ranks(2, inter_node=LINK).call(submission.used_by(hooked), given)
    ends = max(event.end for event in run.trace.of() if event.operation == "backward")
    exposed = max(event.end for event in run.trace.collectives()) - ends
    expect(exposed, "seconds of communication after the backward pass", unit="seconds").at_most(2.5 * message)


@check(
    points=1,
    todo=4,
    title="digits: as accurate as without compression, within a point",
    look_at="the residual, over many steps",
)
def accuracy(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    images, labels = digits("test").tensors
    found = {}
    compressors: list[Spec | None] = [
        None,
        ("TopK", {"ratio": 0.0625}),
        ("RandomK", {"ratio": 0.25, "seed": 1}),
        ("OneBit", {}),
        ("Quantized", {"bits": 4}),
        ("PowerSGD", {"rank": 2}),
    ]
    whole = 4 * (64 * 48 + 48 + 48 * 10 + 10)
    for spec in compressors:
        run = ranks(2).call(submission.used_by(trained), [Args(spec, 150)] * 2)
        first, bias, last, end = run.values[0]
        with torch.no_grad():
            scores = torch.relu(images.flatten(1) @ first.T + bias) @ last.T + end
        name = spec[0] if spec else "none"
        found[name] = float((scores.argmax(1) == labels).float().mean())
        if spec:
            sent = sum(event.nbytes for event in run.trace.collectives(0)) / 150
            expect(sent, f"{name}: bytes of a step", unit="bytes").at_most(0.26 * whole)
    for name, share in found.items():
        expect(share, f"{name}: share of the test digits that are right").at_least(found["none"] - 0.01)


@check(
    points=2,
    todo=4,
    title="real processes: no more bytes than the messages have",
    look_at="what travels beside the messages",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, numel = 3, 400_000
    for spec, message, share in (
        (("TopK", {"ratio": 0.0625}), 8 * numel // 16, world_size * (world_size - 1)),
        (("RandomK", {"ratio": 0.125, "seed": 2}), 4 * numel // 8, 2 * (world_size - 1)),
        (("OneBit", {}), numel // 8, world_size * (world_size - 1)),
    ):
        steps = gradients_of(draw, 2, world_size, (500, numel // 500))
        given = [Args(spec, [step[rank] for step in steps]) for rank in range(world_size)]
        run = ranks.processes(world_size).call(submission.used_by(reduced), given)
        arrived(spec, steps, by_step(run), " on real processes")
        expect(run.bytes_on_the_wire, f"{spec[0]}: bytes that all ranks sent, by the kernel", unit="bytes").at_most(
            HEADERS * 2 * share * message
        )
