"""Hidden rubric of parallel_3d: 25 points, 8 for the mesh, 3 for the model's parts, 9 for training, 5 for its costs.

Sizes, seeds, meshes and batches are drawn. Only the ranks of the first stage get tokens and only those of the last one
get targets, each those of its data-parallel rank; losses and parameters are those of one process with all of them.
The trace shows who joined which group, which group sends how many bytes, and when ranks compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.parallel_3d.scenarios import line, one_process, pairs_of, place, trained
from labkit.trace import Event, Kind

UNIT_SECONDS = 0.01
"""Virtual seconds for each unit of FLOPs."""
FLOAT = 4
REORDERED = 700
"""Bytes beside the gradients in a data-parallel group: the loss, and the order of buckets."""
FORBIDDEN = {
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.fsdp.fully_shard",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def placed(meshes: list[list[int]]) -> Any:
    """On a rank: return, for each mesh, the coordinates of all ranks, and the ranks along each axis from this one."""
    import torch.distributed as dist

    from labkit.exercises import parallel_3d

    found = []
    for sizes in meshes:
        mesh = parallel_3d.Mesh(*sizes)
        all_places = [list(mesh.coordinates(rank)) for rank in range(dist.get_world_size())]
        lines = [list(mesh.ranks_along(axis)) for axis in ("dp", "pp", "tp")]
        found.append([all_places, list(mesh.coordinates()), lines])
    return found


def grouped(sizes: list[int], number: Any) -> Any:
    """On a rank: return the members of its groups, and the sum of `number` over each."""
    import torch.distributed as dist

    from labkit.exercises import parallel_3d

    groups = parallel_3d.build_mesh(*sizes).groups
    found = {}
    for axis in sorted(groups):
        total = number.clone()
        dist.all_reduce(total, group=groups[axis])
        found[axis] = [list(dist.get_process_group_ranks(groups[axis])), total]
    return found


def refused(meshes: list[list[Any]], options: list[list[Any]]) -> list[str]:
    """On a rank: return the errors for these meshes, and for these options of a trainer on a mesh of (1, 2, 2)."""
    import torch

    from labkit.exercises import parallel_3d
    from labkit.models.gpt import GPTConfig

    tried: list[Any] = [lambda sizes=sizes: parallel_3d.build_mesh(*sizes) for sizes in meshes]
    mesh = parallel_3d.build_mesh(1, 2, 2)

    def sgd(parameters: Any, group: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    for config, rest in options:
        tried.append(lambda c=config, r=rest: parallel_3d.Parallel3DTrainer(GPTConfig(**c), mesh, sgd, *r))
    found = []
    for call in tried:
        try:
            call()
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def halved(block: Any) -> Any:
    """A block that gives half of what it gave: what a trainer may use in its place."""
    import torch

    class Halved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Any) -> Any:
            return 0.5 * self.block(x)

    return Halved()


def trained_by_momentum(
    dims: list[int],
    sizes: dict[str, Any],
    batches: list[Any],
    microbatches: int,
    seed: int,
    data_parallel: str = "ddp",
    wrapped: bool = False,
    **how: Any,
) -> dict[str, Any]:
    """On a rank: train with momentum. data_parallel: "optimizer" makes one that averages the gradients itself.

    wrapped: blocks are `halved`.
    """
    import torch
    import torch.distributed as dist

    class Averaging(torch.optim.SGD):
        group: Any = None

        def step(self, closure: Any = None) -> Any:
            for entry in self.param_groups:
                for parameter in entry["params"]:
                    dist.all_reduce(parameter.grad, group=self.group)
                    parameter.grad /= dist.get_world_size(self.group)
            return super().step(closure)

    def make(parameters: Any, group: Any) -> Any:
        kind = Averaging if data_parallel == "optimizer" else torch.optim.SGD
        made: Any = kind(parameters, lr=0.5, momentum=0.5)
        made.group = group
        return made

    if wrapped:
        how["wrap"] = halved
    return trained(dims, sizes, batches, microbatches, seed, make, data_parallel=data_parallel, **how)


# What the judge knows -------------------------------------------------------------------------------------------------


def count(sizes: Sequence[int]) -> int:
    return sizes[0] * sizes[1] * sizes[2]


def drawn_sizes(draw: Draw, heads: int, layers: int) -> dict[str, Any]:
    return {
        "layers": layers, "heads": heads, "width": heads * draw.choice([4, 6]), "vocab": draw.randrange(17, 30),
        "context": draw.choice([4, 6]),
    }  # fmt: skip


class Training:
    """A training that is the same on any mesh: sizes, seed and batches, drawn; and what one process gets."""

    def __init__(
        self, draw: Draw, mesh: Sequence[int], microbatches: int, samples: int, steps: int = 2, layers: int = 0,
        wrapped: bool = False, width: int = 0,
    ) -> None:  # fmt: skip
        self.mesh, self.microbatches, self.samples = list(mesh), microbatches, samples
        self.sizes = drawn_sizes(draw, mesh[2] * draw.choice([1, 2]), layers or max(2, mesh[1]))
        self.sizes["width"] = width or self.sizes["width"]
        self.seed, self.wrapped = draw.randrange(10**6), wrapped
        generator = torch.Generator().manual_seed(draw.getrandbits(62))
        shape = samples, self.sizes["context"] + 1
        self.batches = [torch.randint(self.sizes["vocab"], shape, generator=generator) for _ in range(steps)]

    def given(self, **options: Any) -> list[Args]:
        """Return the arguments of each rank: tokens on the first stage, targets on the last."""
        more = {"wrapped": True} if self.wrapped else {}
        return [
            Args(self.mesh, self.sizes, pairs, self.microbatches, self.seed, **more, **options)
            for pairs in (pairs_of(rank, self.mesh, self.batches) for rank in range(count(self.mesh)))
        ]

    def in_one_process(self) -> tuple[list[float], list[list[Tensor]]]:
        """Return the losses, and each layer's parameters afterwards."""
        more = {"wrap": halved} if self.wrapped else {}
        return one_process(self.sizes, self.batches, self.seed, momentum=0.5, **more)

    def compare(self, run: Run) -> None:
        """Expect losses and parameters of one process on all ranks."""
        losses, layers = self.in_one_process()
        text = f"dp, pp, tp = {', '.join(map(str, self.mesh))}, {self.microbatches} microbatches"
        found: dict[int, list[Any]] = {}
        for rank, value in enumerate(run.values):
            _, stage, _ = place(rank, self.mesh)
            wanted = torch.tensor(losses) if stage == self.mesh[1] - 1 else None
            own = value["losses"]
            seen = None if None in own else torch.stack([loss.detach().float() for loss in own])
            expect([seen], f"losses on rank {rank}, {text}").close_to([wanted], rel=1e-4)
            for index, parameters in zip(value["stages"], value["values"], strict=True):
                found.setdefault(index, []).append((rank, parameters))
        copies = self.mesh[0] * self.mesh[2]
        expect([len(found[stage]) for stage in sorted(found)], f"ranks of each stage, {text}").equals(
            [copies] * len(found)
        )
        for number in range(copies):
            ranks = [found[stage][number][0] for stage in sorted(found)]
            own_layers = [layer for stage in sorted(found) for layer in found[stage][number][1]]
            expect([len(layer) for layer in own_layers], f"parameters of each layer on ranks {ranks}, {text}").equals(
                [len(layer) for layer in layers]
            )
            for place_of, (own, wanted_layer) in enumerate(zip(own_layers, layers, strict=True)):
                what = f"parameters of layer {place_of} on one of the ranks {ranks}, {text}"
                expect(own, what).close_to(wanted_layer, rel=1e-3)


def train(submission: Submission, ranks: Ranks, training: Training, hardware: Any = None, **options: Any) -> Run:
    """Train, and expect what one process gets."""
    program = submission.used_by(trained_by_momentum, trained, halved)
    run = ranks(count(training.mesh), **(hardware or {})).call(program, training.given(**options))
    training.compare(run)
    return run


def marks(run: Run, rank: int) -> list[float]:
    return sorted(e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "mark")


def by_axis(run: Run, rank: int, mesh: Sequence[int]) -> dict[str, list[Event]]:
    """Return the collectives of a rank in the first step, by the axis whose group they are of."""
    begin, end, *_ = marks(run, rank)
    lines = {tuple(line(rank, number, mesh)): axis for number, axis in enumerate(("dp", "pp", "tp"))}
    found: dict[str, list[Event]] = {}
    for event in run.trace.collectives(rank):
        if begin <= event.start < end:
            found.setdefault(lines.get(tuple(run.trace.members(event)), "other ranks"), []).append(event)
    return found


def product_flops(training: Training) -> float:
    """FLOPs of the products of one block with whole matrices, forward, for a microbatch of one data-parallel rank."""
    samples = training.samples / training.mesh[0] / training.microbatches
    return float(24 * samples * training.sizes["context"] * training.sizes["width"] ** 2)


# The mesh -------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=1,
    title="coordinates, and the ranks along each axis",
    look_at="coordinates and ranks_along: tp counts first, then dp, then pp",
)
def places(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    meshes = [draw.sample([2, 3, 2], 3), [3, 4, 1], [1, 2, 6], draw.choice([[12, 1, 1], [1, 12, 1], [1, 1, 12]])]
    run = ranks(12).call(submission.used_by(placed), [Args(meshes)] * 12)
    for rank, value in enumerate(run.values):
        for mesh, (all_places, own, lines) in zip(meshes, value, strict=True):
            text = f"on a mesh of dp, pp, tp = {mesh}"
            expect(all_places, f"coordinates of all ranks {text}").equals([list(place(r, mesh)) for r in range(12)])
            expect(own, f"coordinates of this rank, {rank}, {text}").equals(list(place(rank, mesh)))
            expect(lines, f"ranks along dp, pp and tp from rank {rank} {text}").equals(
                [line(rank, axis, mesh) for axis in range(3)]
            )


@check(
    points=4,
    todo=2,
    title="every group's members",
    look_at="build_mesh: all groups of each axis, on every rank, in one order",
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mesh in (draw.choice([[2, 3, 1], [1, 3, 2], [1, 4, 1]]), draw.choice([[3, 2, 2], [2, 2, 3]])):
        numbers = [draw.tensor(3) for _ in range(count(mesh))]
        run = ranks(count(mesh)).call(submission.used_by(grouped), [Args(mesh, number) for number in numbers])
        for rank, value in enumerate(run.values):
            wanted = {axis: line(rank, number, mesh) for number, axis in enumerate(("dp", "pp", "tp"))}
            if rank in (wanted["pp"][0], wanted["pp"][-1]):
                wanted["ends"] = sorted({wanted["pp"][0], wanted["pp"][-1]})
            text = f"groups of rank {rank} on a mesh of dp, pp, tp = {mesh}"
            expect({axis: members for axis, (members, _) in value.items()}, text).equals(dict(sorted(wanted.items())))
            joined = {tuple(run.trace.groups[m.group]) for m in run.trace.memberships_of(rank)}
            expect([list(group) for group in wanted.values() if tuple(group) not in joined], "not joined").equals([])
            for axis, (_, total) in value.items():
                expect([total], f"sum over the group along {axis} of rank {rank}").close_to(
                    [torch.stack([numbers[r] for r in wanted[axis]]).sum(0)]
                )


@check(points=1, todo=2, title="what does not fit is refused", look_at="the given lines at the beginning must stay")
def refusals(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    meshes = [[2, 2, 2], [1, 4, 0], [2, 1, draw.choice([1, 3])], [True, 2, 2], [1, 2.0, 2]]
    small = {"layers": 2, "heads": 2, "width": 4, "vocab": 8, "context": 4}
    options: list[list[Any]] = [
        [{**small, "heads": 1}, [2]], [{**small, "vocab": 1}, [2]], [small, [0]], [small, [2, "zigzag"]],
        [small, [2, "1f1b", 2]], [small, [4, "interleaved", 3]],
    ]  # fmt: skip
    run = ranks(4).call(submission.used_by(refused), [Args(meshes, options)] * 4)
    begins = [
        "dp * pp * tp must be 4", "tp", "dp * pp * tp must be 4", "dp", "pp", "config", "config", "microbatches",
        "name", "chunks", "config",
    ]  # fmt: skip
    for value in run.values:
        for start, seen in zip(begins, value, strict=True):
            expect(seen.startswith(f"ValueError: {start}"), f"ValueError that begins with {start!r}").holds(seen)
    expect(len(run.trace.collectives()), "collectives before an error").equals(0)


# The model ------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=3,
    title="a rank holds its part of its stage, and nothing else",
    look_at="part_of: exercise 08's `from_full`, with the tensor-parallel group",
)
def parts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = Training(draw, (1, 2, 2), 2, 2, steps=0, layers=draw.choice([3, 4]))
    run = ranks(4).call(submission.used_by(trained_by_momentum, trained, halved), training.given())
    width, layers = training.sizes["width"], training.sizes["layers"]
    block = sorted([[width]] * 6 + [[3 * width // 2, width], [3 * width // 2], [width, width // 2]] +
                   [[2 * width, width], [2 * width], [width, 2 * width]])  # fmt: skip
    held = []
    for rank, value in enumerate(run.values):
        shapes = [[sorted(layer) for layer in stage] for stage in value["shapes"]]
        expect(len(shapes), "stages of a rank").equals(1)
        rows = training.sizes["vocab"] // 2 + (training.sizes["vocab"] % 2) * (rank % 2)
        first = sorted([[rows, width], [training.sizes["context"], width]])
        last = sorted([[width], [width], [rows, width]])
        blocks = shapes[0][1:] if rank < 2 else shapes[0][:-1]
        held.append(len(blocks))
        expect(shapes[0][0] if rank < 2 else shapes[0][-1], f"shapes of the end on rank {rank}").equals(
            first if rank < 2 else last
        )
        expect(blocks, f"shapes of blocks on rank {rank}").equals([block] * len(blocks))
        # what is sent while the trainer is made: nothing, or what makes parameters start equal
        elements = sum(torch.Size(shape).numel() for stage in shapes for layer in stage for shape in layer)
        what = f"bytes that rank {rank} gives to collectives while the trainer is made"
        expect(sum(e.nbytes for e in run.trace.collectives(rank)), what, unit="bytes").at_most(FLOAT * elements + 64)
    expect([held[0] + held[2], held[1] + held[3]], "blocks of both stages").equals([layers] * 2)


# Training -------------------------------------------------------------------------------------------------------------


@check(points=2, todo=4, title="tensor parallel: like one process", look_at="part_of; the criterion's group")
def tensor(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = Training(draw, (1, 1, draw.choice([2, 3])), 2, draw.choice([2, 3]), wrapped=True)
    train(submission, ranks, training)


@check(
    points=3,
    todo=4,
    title="a pipeline with a shared weight: like one process",
    look_at="train_step: two gradients of one weight; microbatches may be unequal",
)
def pipeline(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    train(submission, ranks, Training(draw, (1, draw.choice([3, 4]), 1), 3, draw.choice([4, 5])))
    train(submission, ranks, Training(draw, (1, 2, 1), 2, 4, layers=2), schedule="interleaved", chunks=2)


@check(
    points=3,
    todo=4,
    title="all three axes, and bytes by axis: like one process",
    look_at="train_step: what is summed or averaged in which group",
)
def axes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    mesh = 2, 2, 2
    training = Training(draw, mesh, draw.choice([2, 3]), 12, layers=draw.choice([2, 4]))
    run = train(submission, ranks, training, {"nproc_per_node": 4}, mark=work("mark", 1e-6))
    m, sizes = training.microbatches, training.sizes
    words = training.samples // mesh[0] * sizes["context"]  # of all microbatches
    for rank, value in enumerate(run.values):
        seen, first = by_axis(run, rank, mesh), place(rank, mesh)[1] == 0
        expect(sorted(set(seen) - {"dp", "pp", "tp"}), f"groups of other ranks on rank {rank}").equals([])
        nbytes = {axis: sum(event.nbytes for event in seen.get(axis, [])) for axis in ("dp", "pp", "tp")}
        blocks = len(value["shapes"][0]) - 1
        # each block's four sums of activations, and the embedding's; or the head's and, of each word, three numbers
        wanted = FLOAT * words * (sizes["width"] * (4 * blocks + 1) + (0 if first else 3))
        expect(nbytes["tp"], f"bytes of rank {rank} in its tensor-parallel group", unit="bytes").equals(wanted)
        gradients = FLOAT * sum(torch.Size(s).numel() for layer in value["shapes"][0] for s in layer)
        what = f"bytes of rank {rank} in its data-parallel group: gradients of {gradients:,}"
        expect(nbytes["dp"], what, unit="bytes").at_least(gradients)
        expect(nbytes["dp"], what, unit="bytes").at_most(gradients + REORDERED)
        rows = value["shapes"][0][0 if first else -1]
        shared = FLOAT * max(torch.Size(shape).numel() for shape in rows if len(shape) == 2 and shape[0] >= 8)
        expect(nbytes["pp"], f"bytes of rank {rank} for the shared weight", unit="bytes").equals(shared)
        crossing = sum(
            e.nbytes for e in run.trace.of(rank, Kind.SEND)
            if e.peer is not None and e.peer // 4 != rank // 4 and marks(run, rank)[0] <= e.start < marks(run, rank)[1]
        )  # fmt: skip
        what = f"bytes that rank {rank} sends to the other node beside that: activations, or their gradients"
        activations = FLOAT * words * sizes["width"]
        expect(crossing, what, unit="bytes").at_least(activations)
        expect(crossing, what, unit="bytes").at_most(activations + 256 * m)


@check(
    points=1,
    todo=4,
    title="an optimizer that averages gradients itself",
    look_at="train_step: `self.replicas` may be empty, and stages have other modules then",
)
def optimizer(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = Training(draw, (2, 2, 1), 2, 4)
    run = train(submission, ranks, training, data_parallel="optimizer", mark=work("mark", 1e-6))
    for rank in range(4):
        parameters = sum(len(layer) for layer in run.values[rank]["shapes"][0])
        seen = len(by_axis(run, rank, training.mesh).get("dp", []))
        expect(seen, f"collectives of rank {rank} over dp: one of each parameter, and the loss").at_most(parameters + 1)


# Costs ----------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=4,
    title="every rank computes its share, in a pipeline without further bubbles",
    look_at="the timeline: who waits for whom",
)
def bubble(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    mesh, m = [1, 2, 2], draw.choice([4, 5])
    training = Training(draw, mesh, m, m, steps=1, layers=4, width=draw.choice([48, 64]))
    flops = product_flops(training) / 2 / 8  # an eighth of a block on one of two tensor-parallel ranks
    options = {"mark": work("mark", 1e-6), "unit": work("unit", UNIT_SECONDS / 8), "flops": flops}
    run = train(submission, ranks, training, {"inter_node": "ib-hdr", "nproc_per_node": 2}, **options)
    busy = [sum(e.operation == "unit" for e in run.trace.of(rank, Kind.COMPUTE)) / 8 for rank in range(4)]
    for rank, units in enumerate(busy):
        # two blocks; backward has twice the FLOPs of forward; attention, the head, and the end of the step have some
        expect(units, f"work of rank {rank}, in blocks' forwards").at_least(3 * 2 * m - 1)
        expect(units, f"work of rank {rank}, in blocks' forwards").at_most(3 * 3 * m)
    begin, end = marks(run, 0)
    least = max(busy) * UNIT_SECONDS * (m + 1) / m
    expect(end - begin, f"seconds of a step of {m} microbatches on 2 stages", unit="seconds").at_most(1.12 * least)


@check(
    points=2,
    todo=4,
    title="gradients are averaged while the pipeline drains, and while the last backward computes",
    look_at="Stage.backward, and where `finish_gradient_synchronization` is called",
)
def overlap(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    mesh, m = [2, 2, 1], 3
    # a stage has more than the 1 MB of the first bucket
    training = Training(draw, mesh, m, 2 * m, steps=1, layers=4, width=draw.choice([128, 144]))
    options = {"mark": work("mark", 1e-6), "unit": work("unit", UNIT_SECONDS), "flops": product_flops(training) / 4}
    run = train(submission, ranks, training, {"inter_node": "ethernet-10g", "nproc_per_node": 1}, **options)
    for rank in range(4):
        units = [e for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "unit"]
        last = max(e.end for e in units)
        buckets = [e for e in by_axis(run, rank, mesh).get("dp", []) if e.nbytes > 64]
        expect(bool(buckets), f"rank {rank} averages gradients").holds("no collective with the data-parallel ranks")
        what = f"seconds by which the first gradients of rank {rank} leave before its last backward has ended"
        expect(last - min(e.start for e in buckets), what, unit="seconds").at_least(0)
        if place(rank, mesh)[1] == 1:
            what = f"seconds from the last backward of rank {rank} until the gradient for the stage before leaves"
            sends = [e.start for e in run.trace.of(rank, Kind.SEND)]
            expect(max(sends) - last, what, unit="seconds").at_most(UNIT_SECONDS / 100)


@check(
    points=1,
    todo=4,
    title="data parallel: one average of each gradient in a step",
    look_at="train_step: within `no_sync()` nothing is averaged",
)
def data(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = Training(draw, (draw.choice([2, 3]), 1, 1), 3, 12)
    run = train(submission, ranks, training, mark=work("mark", 1e-6))
    for rank, value in enumerate(run.values):
        shapes = [shape for layer in value["shapes"][0] for shape in layer]
        shared = max(torch.Size(shape).numel() for shape in value["shapes"][0][-1])
        gradients = FLOAT * (sum(torch.Size(shape).numel() for shape in shapes) - shared)
        begin, end, *_ = marks(run, rank)
        seen = [
            e.nbytes for e in run.trace.collectives(rank)
            if begin <= e.start < end and len(run.trace.members(e)) == training.mesh[0]
        ]  # fmt: skip
        what = f"bytes of rank {rank} in its data-parallel group, with a shared weight of {FLOAT * shared:,} once"
        expect(sum(seen), what, unit="bytes").at_least(gradients)
        expect(sum(seen), what, unit="bytes").at_most(gradients + REORDERED)
