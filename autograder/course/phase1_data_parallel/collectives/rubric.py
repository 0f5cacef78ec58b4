"""Hidden rubric of collectives: 20 points, 10 for correct values and 10 for the communication pattern.

It judges what the ranks return and the messages that they send; no check reads source text. A value earns its points
only if it was computed from the learner's own messages: in most runs one of them is altered in transit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autograder.rubric_support.messages import made_of_messages, own_messages, summed
from labkit.checks import (
    Alteration,
    Args,
    Draw,
    Ranks,
    Reference,
    Submission,
    check,
    expect,
    group_of,
    reduce_op,
    transposed,
)
from labkit.clusters import Run
from labkit.hardware import LINKS
from labkit.trace.rounds import rounds

ALL_REDUCES = ("all_reduce_naive", "all_reduce_tree", "all_reduce_recursive_doubling")
LINK = "ethernet-10g"
HEADERS = 1.1
"""Allowance for TCP's own bytes: below 1 % of megabytes on an idle machine, 5.1 % measured on a busy one."""
SLACK = 1.4
"""Factor over the formula's time. Waiting for a round longer than it takes doubles the time."""
FORBIDDEN = {
    "torch.distributed.all_gather",
    "torch.distributed.all_gather_into_tensor",
    "torch.distributed.all_gather_object",
    "torch.distributed.all_gather_single",
    "torch.distributed.all_gather_tensor",
    "torch.distributed.all_reduce",
    "torch.distributed.all_reduce_coalesced",
    "torch.distributed.all_to_all",
    "torch.distributed.all_to_all_single",
    "torch.distributed.broadcast",
    "torch.distributed.gather",
    "torch.distributed.reduce",
    "torch.distributed.reduce_scatter",
    "torch.distributed.reduce_scatter_tensor",
    "torch.distributed.scatter",
    "*.allgather",
    "*.allreduce",
    "*.alltoall",
    "*._allgather_base",
    "*._reduce_scatter_base",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


def all_reduced(ranks: Ranks, function: Reference, draw: Draw, inputs: list[Tensor]) -> Run:
    """Run an all-reduce on `inputs`, one for each rank; expect on every rank the sum, computed from messages."""
    world_size, rank = len(inputs), draw.randrange(len(inputs))
    run = ranks(world_size, alteration=Alteration(rank, inputs[0].dtype)).call(function, inputs)
    made_of_messages(run, rank, [summed(inputs)] * world_size, function.name)
    return run


def depth(world_size: int) -> int:
    """Return the base-2 logarithm, rounded up."""
    return (world_size - 1).bit_length()


def doubling_rounds(world_size: int) -> int:
    core = 1 << (world_size.bit_length() - 1)
    return depth(core) + 2 * (world_size != core)


def shape(draw: Draw) -> tuple[int, ...]:
    return draw.choice([(draw.randrange(8, 200),), (draw.randrange(2, 9), draw.randrange(4, 20))])


# Values ---------------------------------------------------------------------------------------------------------------


@check(points=1, todo=1, title="broadcast, from any rank", look_at="places are counted from src on")
def broadcasts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5, 6, 7]), draw.choice([4, 8])):
        inputs, src = draw.tensors(world_size, shape(draw)), draw.randrange(1, world_size)
        given = [Args(tensor, src) for tensor in inputs]
        run = ranks(world_size, alteration=Alteration(src)).call(submission.broadcast, given)
        made_of_messages(run, src, [inputs[src]] * world_size, f"tensor of rank {src}")


@check(
    points=1,
    todo=2,
    title="reduce, to any rank",
    look_at="the tree of broadcast, backwards; places are counted from dst on",
)
def reduces(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5, 6, 7]), draw.choice([4, 8])):
        inputs, dst = draw.tensors(world_size, shape(draw)), draw.randrange(1, world_size)
        altered = (dst + draw.randrange(1, world_size)) % world_size
        given = [Args(tensor, dst) for tensor in inputs]
        run = ranks(world_size, alteration=Alteration(altered)).call(submission.reduce, given)
        wanted = [summed(inputs) if rank == dst else None for rank in range(world_size)]
        made_of_messages(run, altered, wanted, f"sum on rank {dst}")


@check(
    points=1,
    todo=3,
    title="all-gather: row r is rank r's",
    look_at="what arrives in the last round, and the turn at the end",
)
def gathers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5, 6, 7]), draw.choice([4, 8])):
        inputs, altered = draw.tensors(world_size, shape(draw)), draw.randrange(world_size)
        run = ranks(world_size, alteration=Alteration(altered)).call(submission.all_gather, inputs)
        made_of_messages(run, altered, [torch.stack(inputs)] * world_size, "rows")
        left = [result.arguments[0] for result in run.ranks]
        expect(left, "the tensor that was given, after the call").equals(inputs)


@check(
    points=1,
    todo=4,
    title="the three all-reduces, on powers of two and other sizes",
    look_at="the ranks beyond the largest power of two",
)
def all_reduces(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for name in ALL_REDUCES:
        for world_size in (draw.choice([3, 5, 6, 7]), draw.choice([4, 8])):
            all_reduced(ranks, getattr(submission, name), draw, draw.tensors(world_size, shape(draw)))


@check(
    points=1,
    todo=4,
    title="one rank; tensors of one element, and of none",
    look_at="what is done where nothing is to be sent",
)
def tiny(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, size in ((1, (3,)), (draw.choice([3, 5]), draw.choice([(1,), ()])), (3, (0, 2))):
        inputs = draw.tensors(world_size, size)
        for name in ALL_REDUCES[1:]:
            run = ranks(world_size).call(getattr(submission, name), inputs)
            expect(run.values, name).equals([summed(inputs)] * world_size)
            own_messages(run)
        run = ranks(world_size).call(submission.all_gather, inputs)
        expect(run.values, "rows").equals([torch.stack(inputs)] * world_size)


@check(
    points=1,
    todo=4,
    title="every dtype keeps its precision, and all ranks get the same bits",
    look_at="use the given buffer: it has the tensor's dtype",
)
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for dtype in (torch.int64, draw.choice([torch.float64, torch.bfloat16, torch.float16, torch.uint8])):
        world_size = draw.choice([3, 5])
        for name in (*ALL_REDUCES[1:], "all_gather"):
            inputs = draw.tensors(world_size, shape(draw), dtype)
            if dtype in (torch.int64, torch.float64):
                # odd numbers that need more bits than a float32 has
                inputs = [tensor * 2**31 + 1 for tensor in inputs]
            if name == "all_gather":
                rows = ranks(world_size).call(submission.all_gather, inputs).values
                expect(rows, "rows").equals([torch.stack(inputs)] * world_size)
            else:
                all_reduced(ranks, getattr(submission, name), draw, inputs)
    for name in ALL_REDUCES:
        thirds = [tensor / 3 for tensor in draw.tensors(6, 50)]
        values = ranks(6).call(getattr(submission, name), thirds).values
        expect(values, name).close_to([summed(thirds)] * 6)
        expect(values, f"{name}: all ranks, beside rank 0").equals([values[0]] * 6)


@check(
    points=1,
    todo=4,
    title="AVG, MAX, MIN and PRODUCT",
    look_at="`combine`, once for each arrival; the division is given",
)
def operations(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for operation in ("AVG", "MAX", "MIN", "PRODUCT"):
        world_size = draw.choice([3, 5])
        for name in ALL_REDUCES if operation == "AVG" else draw.sample(ALL_REDUCES, 1):
            inputs = draw.tensors(world_size, shape(draw))
            stacked = torch.stack(inputs)
            known = {"AVG": stacked.mean(0), "MAX": stacked.amax(0), "MIN": stacked.amin(0), "PRODUCT": stacked.prod(0)}
            given = [Args(tensor, op=reduce_op(operation)) for tensor in inputs]
            run = ranks(world_size).call(getattr(submission, name), given)
            expect(run.values, f"{name}, {operation}").close_to([known[operation]] * world_size)
            own_messages(run)


@check(points=1, todo=4, title="works in place and returns the same tensor", look_at="the object that is returned")
def in_place(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    inputs, src = draw.tensors(world_size, shape(draw)), draw.randrange(1, world_size)
    broadcast = ranks(world_size).call(submission.broadcast, [Args(tensor, src) for tensor in inputs])
    for run, wanted in (
        (broadcast, inputs[src]),
        *(
            (all_reduced(ranks, getattr(submission, name), draw, draw.tensors(world_size, shape(draw))), None)
            for name in ALL_REDUCES
        ),
    ):
        own_messages(run)
        for result in run.ranks:
            # the judge reads the memory location; object identity is reported by the rank
            expect(result.returned_argument, "index of the argument that the returned object is").equals(0)
            expect(result.arguments[0], "the tensor that was given").equals(result.value if wanted is None else wanted)


@check(
    points=1,
    todo=4,
    title="a group of some of the ranks",
    look_at="places: in the group, not in the world; src: in the world",
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([5, 7])
    order = draw.sample(range(1, world_size), world_size - 1)
    parts = [sorted([0, *order[:1]]), sorted(order[1:])]
    altered = draw.randrange(world_size)
    mine = {rank: part for part in parts for rank in part}
    for name in ALL_REDUCES[1:]:
        inputs = draw.tensors(world_size, 60)
        given = [Args(tensor, group=group_of(mine[rank])) for rank, tensor in enumerate(inputs)]
        run = ranks(world_size, alteration=Alteration(altered)).call(getattr(submission, name), given)
        sums = [summed([inputs[r] for r in mine[rank]]) for rank in range(world_size)]
        made_of_messages(run, altered, [*sums], name)
    inputs = draw.tensors(world_size, 60)
    given = [Args(tensor, mine[rank][-1], group=group_of(mine[rank])) for rank, tensor in enumerate(inputs)]
    run = ranks(world_size).call(submission.broadcast, given)
    expect(run.values, "broadcast from the last of each group").equals([inputs[mine[r][-1]] for r in range(world_size)])
    inputs = draw.tensors(world_size, 60)
    given = [Args(tensor, group=group_of(mine[rank])) for rank, tensor in enumerate(inputs)]
    run = ranks(world_size).call(submission.all_gather, given)
    rows = [torch.stack([inputs[r] for r in mine[rank]]) for rank in range(world_size)]
    expect(run.values, "rows of each group").equals(rows)


@check(
    points=1,
    todo=2,
    title="bad arguments raise ValueError before any message",
    look_at="the given lines at the beginning must stay",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    good = draw.tensors(3, 12)
    all_reduced(ranks, submission.all_reduce_tree, draw, good)
    cases = [
        (submission.all_reduce_recursive_doubling, Args(good[0], op=reduce_op("BAND")), "op"),
        (submission.all_reduce_tree, Args([1.0, 2.0]), "tensor"),
        (submission.broadcast, Args(good[0], draw.choice([3, -1])), "src"),
        (submission.reduce, Args(good[0], draw.choice([3, -1])), "dst"),
    ]
    for function, arguments, name in cases:
        run = ranks(3).attempt(function, [arguments] * 3)
        for result in run.ranks:
            expect(result.error.type if result.error else "no error", f"a bad {name} raises").equals("ValueError")
            expect(result.error.message if result.error else "", "message").contains(name)
        expect(sum(run.trace.messages_sent(rank) for rank in range(3)), "messages sent").equals(0)
    # a strided tensor may be refused or handled, but not left half reduced
    run = ranks(3).attempt(
        submission.all_reduce_recursive_doubling, lambda rank: Args(transposed(good[rank].view(3, 4)))
    )
    for result in run.ranks:
        if result.error is not None:
            expect(result.error.type, "a strided tensor raises").equals("ValueError")
        else:
            expect(result.arguments[0], "the strided tensor").equals(summed(good).view(3, 4).t())


# Communication pattern ------------------------------------------------------------------------------------------------


def tree_runs(submission: Submission, ranks: Ranks, draw: Draw, world_size: int) -> list[tuple[str, Run, int]]:
    """Run a broadcast and a reduce at a random root, and an all-reduce; return the number of trees of each."""
    root = draw.randrange(1, world_size)
    altered = (root + draw.randrange(1, world_size)) % world_size
    found = []
    for name, rank in (("broadcast", root), ("reduce", altered)):
        inputs = draw.tensors(world_size, 64)
        given = [Args(tensor, root) for tensor in inputs]
        run = ranks(world_size, alteration=Alteration(rank)).call(getattr(submission, name), given)
        sums = [summed(inputs) if r == root else None for r in range(world_size)]
        made_of_messages(run, rank, [inputs[root]] * world_size if name == "broadcast" else sums, name)
        found.append((name, run, 1))
    run = all_reduced(ranks, submission.all_reduce_tree, draw, draw.tensors(world_size, 64))
    return [*found, ("all_reduce_tree", run, 2)]


def sent(run: Run) -> list[int]:
    return [run.trace.bytes_sent(rank) for rank in range(run.trace.world_size)]


@check(points=2, todo=2, title="trees: N-1 messages, each the tensor's size", look_at="who sends to whom, and how much")
def tree_messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([5, 6, 7])
    for name, run, trees in tree_runs(submission, ranks, draw, world_size):
        messages = sum(run.trace.messages_sent(rank) for rank in range(world_size))
        expect(messages, f"{name}: messages in all").equals(trees * (world_size - 1))
        expect(sum(sent(run)), f"{name}: bytes in all", unit="bytes").equals(trees * (world_size - 1) * 256)


@check(
    points=2,
    todo=2,
    title="trees: ceil(log2 N) rounds",
    look_at="the timeline: who could have sent already, and did not",
)
def tree_rounds(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (8, draw.choice([5, 6, 7])):
        for name, run, trees in tree_runs(submission, ranks, draw, world_size):
            expect(rounds(run.trace), f"{name}: rounds").at_most(trees * depth(world_size))


@check(
    points=2,
    todo=3,
    title="all-gather: ceil(log2 N) rounds, and each rank sends N-1 tensors",
    look_at="how many rows leave in each round, the last one above all",
)
def gather_rounds(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (8, draw.choice([5, 6, 7])):
        inputs, altered = draw.tensors(world_size, 64), draw.randrange(world_size)
        run = ranks(world_size, alteration=Alteration(altered)).call(submission.all_gather, inputs)
        made_of_messages(run, altered, [torch.stack(inputs)] * world_size, "rows")
        expect(sent(run), "bytes sent by each rank").equals([(world_size - 1) * 256] * world_size)
        expect(rounds(run.trace), "rounds").at_most(depth(world_size))


@check(
    points=2,
    todo=4,
    title="recursive doubling: log2 N exchanges on each rank, all at the same time",
    look_at="who exchanges with whom in each round; sizes that are no power of two take two rounds more",
)
def doubling(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (8, draw.choice([5, 6, 7])):
        function = submission.all_reduce_recursive_doubling
        run = all_reduced(ranks, function, draw, draw.tensors(world_size, 64))
        core = 1 << (world_size.bit_length() - 1)
        messages = core * depth(core) + 2 * (world_size - core)
        expect(sum(sent(run)), "bytes in all", unit="bytes").equals(256 * messages)
        expect(max(sent(run)), "bytes sent by one rank", unit="bytes").at_most(
            256 * (depth(core) + (world_size != core))
        )
        expect(rounds(run.trace), "rounds").at_most(doubling_rounds(world_size))


@check(
    points=1,
    todo=4,
    title="the time that the formulas say, on a slow network",
    look_at="the timeline: who waits while another one sends",
)
def time(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, numel = 8, draw.randrange(60_000, 90_000)
    message = LINKS[LINK].seconds(numel * 4)
    for name, allowed in (
        ("all_reduce_tree", 2 * depth(world_size)),
        ("all_reduce_recursive_doubling", doubling_rounds(world_size)),
        ("all_gather", world_size - 1),
    ):
        inputs = draw.tensors(world_size, numel)
        run = ranks(world_size, inter_node=LINK).call(getattr(submission, name), inputs)
        own_messages(run)
        wanted = torch.stack(inputs) if name == "all_gather" else summed(inputs)
        expect(run.values, name).equals([wanted] * world_size)
        expect(run.trace.seconds, f"{name}: seconds on the virtual clock", unit="seconds").at_most(
            SLACK * allowed * message
        )


@check(
    points=1,
    todo=4,
    title="real processes: the same values, and no more bytes",
    look_at="what may be different with gloo: an order of sends and receives in which all wait",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    inputs = draw.tensors(4, draw.randrange(200_000, 300_000))
    nbytes = inputs[0].numel() * 4
    for name, tensors in (("all_reduce_tree", 6), ("all_reduce_recursive_doubling", 8), ("all_gather", 12)):
        run = ranks.processes(4).call(getattr(submission, name), inputs)
        wanted = torch.stack(inputs) if name == "all_gather" else summed(inputs)
        expect(run.values, name).equals([wanted] * 4)
        own_messages(run)
        what = f"{name}: bytes that all ranks sent, as the kernel counts them"
        expect(run.bytes_on_the_wire, what, unit="bytes").at_least(tensors * nbytes)
        expect(run.bytes_on_the_wire, what, unit="bytes").at_most(HEADERS * tensors * nbytes)
