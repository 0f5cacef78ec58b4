"""Visible checks and hints of parallel_3d.

Eight ranks are 2 x 2 x 2, so that each axis has two places; other checks use one axis only, which shows whose fault
it is. Training is compared with one process that has the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.parallel_3d.scenarios import line, one_process, pairs_of, place, trained
from labkit.hardware import Link
from labkit.models.gpt import GPTConfig
from labkit.models.gpt_layers import gpt_layers
from labkit.trace import Kind

SIZES: dict[str, Any] = {"layers": 4, "heads": 6, "width": 24, "vocab": 19, "context": 5}
UNIT = 24 * 24**2 * 5.0
"""FLOPs of the matrix products of one block, forward, for a sequence of 5 tokens."""
SEED = 3
SECONDS = 0.01
"""Duration of so many FLOPs where time matters."""

# What runs on the ranks -----------------------------------------------------------------------------------------------


def places(dp: int, pp: int, tp: int) -> Any:
    """On a rank: return its coordinates, and the ranks along each axis."""
    from labkit.exercises import parallel_3d

    mesh = parallel_3d.Mesh(dp, pp, tp)
    lines = [list(mesh.ranks_along(axis)) for axis in ("dp", "pp", "tp")]
    return list(mesh.coordinates()), list(mesh.coordinates(1)), lines


def joined(dp: int, pp: int, tp: int) -> dict[str, list[int]]:
    """On a rank: return the ranks of each of its groups."""
    import torch.distributed as dist

    from labkit.exercises import parallel_3d

    groups = parallel_3d.build_mesh(dp, pp, tp).groups
    return {axis: list(dist.get_process_group_ranks(group)) for axis, group in groups.items()}


def trained_by_sgd(
    dims: list[int], sizes: dict[str, Any], batches: list[Any], microbatches: int, seed: int, **how: Any
) -> Any:
    """On a rank: train; return losses, and the shapes and values of its layers' parameters."""
    import torch

    def make(parameters: Any, group: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.5)

    found = trained(dims, sizes, batches, microbatches, seed, make, **how)
    shapes, values = ([layer for layers in found[name] for layer in layers] for name in ("shapes", "values"))
    return found["losses"], shapes, values


# What the checks read -------------------------------------------------------------------------------------------------


def tokens_of(steps: int, samples: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = samples, SIZES["context"] + 1
    return [torch.randint(SIZES["vocab"], shape, generator=generator) for _ in range(steps)]


def given(dims: Sequence[int], batches: Sequence[Tensor], microbatches: int, **options: Any) -> list[Args]:
    """Return the arguments of each rank: tokens on the first stage, targets on the last."""
    return [
        Args(list(dims), SIZES, pairs_of(rank, dims, batches), microbatches, SEED, **options)
        for rank in range(dims[0] * dims[1] * dims[2])
    ]


def like_one_process(
    submission: Submission, ranks: Ranks, dims: Sequence[int], microbatches: int, samples: int, **options: Any
) -> Run:
    """Train two steps on a mesh, and expect losses and parameters of one process."""
    batches = tokens_of(2, samples)
    hardware = options.pop("hardware", {})
    count = dims[0] * dims[1] * dims[2]
    run = ranks(count, **hardware).call(
        submission.used_by(trained_by_sgd, trained), given(dims, batches, microbatches, **options)
    )
    losses, layers = one_process(SIZES, batches, SEED)
    text = f"on a mesh of dp, pp, tp = {', '.join(map(str, dims))}, {microbatches} microbatches"
    seen: dict[int, Any] = {}
    for rank in range(count):
        _, stage, _ = place(rank, dims)
        seen[stage] = run.values[rank][2]
        if stage == dims[1] - 1:
            own = [None if loss is None else float(loss) for loss in run.values[rank][0]]
            expect(own[0], f"mean loss of all samples, on rank {rank}, {text}").close_to(losses[0], rel=1e-4)
    seen_layers = [layer for stage in sorted(seen) for layer in seen[stage]]
    expect(len(seen_layers), f"layers of all stages, {text}").equals(len(layers))
    names = ["embedding", *(f"block {n}" for n in range(len(layers) - 2)), "head"]
    for name, own, wanted in zip(names, seen_layers, layers, strict=True):
        for number, (parameter, right) in enumerate(zip(own, wanted, strict=True)):
            what = f"parameter {number} of the {name} after two steps, {text}"
            expect([parameter], what, look_at=ends_hint(name, dims)).close_to([right], rel=1e-3)
    last = f"losses of step 2, {text}"
    ends = [rank for rank in range(count) if place(rank, dims)[1] == dims[1] - 1]
    seen_losses = torch.tensor([float(run.values[rank][0][1]) for rank in ends])
    expect([seen_losses], last).close_to([torch.full_like(seen_losses, losses[1])], rel=1e-3)
    return run


def ends_hint(name: str, dims: Sequence[int]) -> str:
    if name in ("embedding", "head") and dims[1] > 1:
        return "train_step: embedding and head share a weight, on two ranks, and each has a part of its gradient"
    return "train_step: what is averaged, and over which group"


def marks(run: Run, rank: int) -> tuple[float, float]:
    starts = [e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "mark"]
    if not starts:
        raise NotMeasurable("what is sent when is known on virtual ranks")
    return starts[0], starts[-1]


def collectives_by_members(run: Run, rank: int) -> dict[tuple[int, ...], list[int]]:
    """Return bytes of a rank's collectives between the marks, by the ranks of their group."""
    begin, end = marks(run, rank)
    by_members: dict[tuple[int, ...], list[int]] = {}
    for event in run.trace.collectives(rank):
        if begin <= event.start <= end:
            by_members.setdefault(tuple(run.trace.members(event)), []).append(event.nbytes)
    return by_members


# Checks ---------------------------------------------------------------------------------------------------------------


@check(points=3, todo=1, title="each rank's place on the axes", look_at="coordinates: first tp, then dp, then pp")
def coordinates(submission: Submission, ranks: Ranks) -> None:
    for dims in ((2, 2, 2), (3, 1, 2), (1, 2, 3)):
        count = dims[0] * dims[1] * dims[2]
        run = ranks(count).call(submission.used_by(places), [Args(*dims)] * count)
        text = f"coordinates (dp, pp, tp) of ranks 0..{count - 1} on a mesh of {dims}"
        expect([list(value[0]) for value in run.values], text).equals([list(place(r, dims)) for r in range(count)])
        expect([list(value[1]) for value in run.values], "coordinates of rank 1, as all ranks see it").equals(
            [list(place(1, dims))] * count
        )


@check(points=3, todo=1, title="the ranks along each axis", look_at="ranks_along: how far apart are neighbours on it?")
def lines(submission: Submission, ranks: Ranks) -> None:
    for dims in ((2, 2, 2), (3, 2, 1)):
        count = dims[0] * dims[1] * dims[2]
        run = ranks(count).call(submission.used_by(places), [Args(*dims)] * count)
        for number, axis in enumerate(("dp", "pp", "tp")):
            wanted = [list(line(rank, number, dims)) for rank in range(count)]
            text = f"ranks along {axis} of each rank, on a mesh of {dims}"
            expect([list(value[2][number]) for value in run.values], text).equals(wanted)


@check(points=3, todo=2, title="groups of all axes, and of a pipeline's ends", look_at="build_mesh: who makes which")
def groups(submission: Submission, ranks: Ranks) -> None:
    for dims in ((2, 2, 2), (1, 3, 1), (2, 1, 2)):
        count = dims[0] * dims[1] * dims[2]
        run = ranks(count).call(submission.used_by(joined), [Args(*dims)] * count)
        for rank in range(count):
            wanted = {axis: line(rank, number, dims) for number, axis in enumerate(("dp", "pp", "tp"))}
            pipeline = wanted["pp"]
            if rank in (pipeline[0], pipeline[-1]):
                wanted["ends"] = sorted({pipeline[0], pipeline[-1]})
            text = f"ranks of each group of rank {rank}, on a mesh of {dims}"
            expect(dict(sorted(run.values[rank].items())), text).equals(dict(sorted(wanted.items())))


@check(
    points=3,
    todo=3,
    title="each rank has its part of its own layers",
    look_at="part_of: `from_full` of exercise 08's classes, and the tensor-parallel group",
)
def part(submission: Submission, ranks: Ranks) -> None:
    dims = 1, 2, 2
    run = ranks(4).call(submission.used_by(trained_by_sgd, trained), given(dims, [], 2))
    width, vocab = SIZES["width"], SIZES["vocab"]
    whole = sum(p.numel() for plan in gpt_layers(GPTConfig(**SIZES)) for p in plan.make().parameters())
    elements = [sum(torch.Size(shape).numel() for layer in value[1] for shape in layer) for value in run.values]
    replicated = 4 * 6 * width + (SIZES["context"] + 2) * width
    expect(sum(elements), "parameters on all 4 ranks, with those that both ranks of a stage have").equals(
        whole + replicated
    )
    for rank in range(4):
        first, last = run.values[rank][1][0], run.values[rank][1][-1]
        rows = vocab // 2 + rank % 2
        ends = (first[0], "token_embedding") if rank < 2 else (last[-1], "head")
        what = f"shape of the weight of {ends[1]} on rank {rank}: {vocab} words for two ranks"
        expect(ends[0], what).equals([rows, width])


@check(points=3, todo=4, title="tensor parallel: equal to one process", look_at="part_of; train_step without stages")
def tensor(submission: Submission, ranks: Ranks) -> None:
    like_one_process(submission, ranks, (1, 1, 3), 1, 2)


@check(points=2, todo=4, title="data parallel: equal to one process", look_at="train_step: gradients are means over dp")
def data(submission: Submission, ranks: Ranks) -> None:
    like_one_process(submission, ranks, (3, 1, 1), 2, 6)


@check(
    points=3,
    todo=4,
    title="pipeline with a shared weight: equal to one process",
    look_at="train_step: the pipeline, and the weight that embedding and head share",
)
def pipeline(submission: Submission, ranks: Ranks) -> None:
    like_one_process(submission, ranks, (1, 3, 1), 3, 5)


@check(
    points=3,
    todo=4,
    title="all axes: equal to one process, and each group sends what it must",
    look_at="train_step: in which group is what summed?",
)
def everything(submission: Submission, ranks: Ranks) -> None:
    dims = 2, 2, 2
    run = like_one_process(submission, ranks, dims, 2, 8, mark=work("mark", 1e-6), hardware={"nproc_per_node": 4})
    for rank in range(8):
        gradients = 4 * sum(torch.Size(shape).numel() for layer in run.values[rank][1] for shape in layer)
        sent = collectives_by_members(run, rank)
        data = sum(sent.get(tuple(line(rank, 0, dims)), []))
        what = f"bytes that rank {rank} gives to collectives of its data-parallel group in 2 steps: its gradients"
        expect(data, what, unit="bytes", look_at="gradients are averaged once a step").at_least(2 * gradients)
        # in the second step, the order of the buckets
        expect(data, what, unit="bytes", look_at="gradients are averaged once a step").at_most(2 * gradients + 600)
        known = [tuple(line(rank, number, dims)) for number in range(3)]
        expect([list(members) for members in sent if members not in known], "groups of other ranks").equals([])


@check(
    points=2,
    todo=4,
    title="stages do not wait for each other's gradients",
    look_at="Stage.backward, and when `finish_gradient_synchronization` is called",
)
def bubble(submission: Submission, ranks: Ranks) -> None:
    dims, microbatches = (2, 2, 1), 4
    options = {"mark": work("mark", 1e-6), "unit": work("unit", SECONDS), "flops": UNIT}
    slow = Link("slow", 0.01, 1e-6, "gradients of a stage take some milliseconds")
    hardware = {"inter_node": slow, "nproc_per_node": 1}
    run = like_one_process(submission, ranks, dims, microbatches, 8, hardware=hardware, **options)
    if run.trace.clock != "modelled":
        raise NotMeasurable("time is exact on virtual ranks only")
    begin, end = marks(run, 0)
    units = max(sum(e.operation == "unit" for e in run.trace.of(rank, Kind.COMPUTE)) for rank in range(4))
    # a step of m microbatches on p stages: m + p - 1 times a microbatch's forward and backward
    seconds = units * SECONDS * (microbatches + 1) / microbatches
    expect(end - begin, "seconds of two steps with 4 microbatches on 2 stages", unit="seconds").at_most(1.2 * seconds)
    last = max(e.end for e in run.trace.of(2, Kind.COMPUTE) if e.operation == "unit")
    leaves = max(e.start for e in run.trace.of(2, Kind.SEND))
    what = "seconds from the last backward of the last stage until its gradient leaves for the stage before"
    expect(leaves - last, what, unit="seconds", look_at="Stage.backward must not wait").at_most(0.001)


HINTS = {
    1: [
        "Write down ranks 0 to 7 for a mesh of 2 x 2 x 2. Which are neighbours along tp? It counts fastest.",
        "A rank is (pp * DP + dp) * TP + tp, with the sizes DP and TP. Solve it for the three places by `//` and `%`.",
        "Neighbours along tp are 1 apart, along dp TP, along pp TP * DP. Go back to the first of the line: "
        "`first = rank - place * stride`.",
    ],
    2: [
        "Each rank makes the groups of all ranks, not only its own, and all in the same order.",
        "For each axis: the set of all lines `tuple(mesh.ranks_along(axis, rank))` for all ranks, sorted.",
        "`group = dist.new_group(list(ranks))`, then `if mesh.rank in ranks: mesh.groups[axis] = group`. For the ends "
        "take `(line[0], line[-1])` of each pipeline, without a rank twice.",
    ],
    3: [
        "Exercise 08's layers have `from_full(module, group)`. What of a block is cut, "
        "`TensorParallelTransformer` knows by itself.",
        "The embedding of words is cut by words, and so is the head's weight: rows of torch's weight are its outputs.",
        "`layer.token_embedding = tensor_parallel.VocabParallelEmbedding.from_full(layer.token_embedding, group)`, and "
        "`layer.head = tensor_parallel.ColumnParallelLinear.from_full(layer.head, group)`.",
    ],
    4: [
        "In which order? The pipeline; the averages over dp; the shared weight's sum over the ends; the loss; and the "
        "optimizer, which is given.",
        "`with ExitStack() as stack:` enters `replica.no_sync()` of each replica, then calls "
        "`self.pipeline.forward_backward(batch, target, criterion)`. In `Stage.backward` count down, and at 0 call "
        "`self.module.synchronize_next_backward()` if it is a `ddp.DistributedDataParallel`.",
        "After it: `replica.finish_gradient_synchronization()` for each, then `dist.all_reduce(weight.grad, "
        'group=self.mesh.groups["ends"])` for the shared weight, and of the loss over dp, divided by '
        "`self.mesh.sizes.dp`. The loss is None on ranks without the last stage.",
    ],
}
