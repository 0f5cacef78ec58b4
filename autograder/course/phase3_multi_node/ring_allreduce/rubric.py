"""Hidden rubric of ring_allreduce: 25 points, 12 for correct values and 13 for the communication pattern.

It judges what the ranks return and the messages that they send; no check reads source text. A value earns its points
only if it was computed from the learner's own messages: in most runs one of them is altered in transit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autograder.rubric_support.messages import made_of_messages, own_messages, summed
from labkit.checks import (
    Alteration,
    Args,
    Draw,
    Ranks,
    Submission,
    check,
    expect,
    group_of,
    reduce_op,
    transposed,
)
from labkit.clusters import Run
from labkit.hardware import LINKS

LINK = "ethernet-10g"
HEADERS = 1.1
"""Allowance for TCP's own bytes: below 1 % of megabytes as measured, plus room for a busy machine."""
SLACK = 2.5
"""Sending and receiving in turn takes twice the time of doing both at once; both are correct."""
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


EASIER = ("reduce_scatter", "all_gather", "values")
"""Checks to look at first when a sum is wrong: the phase that is wrong by itself, else the simplest sum."""


def all_reduced(ranks: Ranks, submission: Submission, draw: Draw, inputs: list[Tensor], **hardware: Any) -> Run:
    """Run ring_all_reduce on `inputs`, one for each rank; expect on every rank the sum, computed from messages."""
    world_size, rank = len(inputs), draw.randrange(len(inputs))
    alteration = Alteration(rank, inputs[0].dtype)
    run = ranks(world_size, alteration=alteration, **hardware).call(submission.ring_all_reduce, inputs)
    made_of_messages(run, rank, [summed(inputs)] * world_size, easier=EASIER)
    return run


def shards(tensor: Tensor, count: int) -> list[Tensor]:
    """Return the contract's shards: ceil(numel / count) elements each, the last ones shorter or empty."""
    flat = tensor.reshape(-1)
    length = -(-flat.numel() // count)
    return [flat[index * length : (index + 1) * length] for index in range(count)]


def shape(draw: Draw, world_size: int) -> tuple[int, ...]:
    """Return a shape of one or two dimensions divisible by the number of ranks; even half a shard can be altered."""
    length = draw.randrange(4, 40) * world_size
    return draw.choice([(length,), (draw.randrange(2, 5), length)])


# Values ---------------------------------------------------------------------------------------------------------------


@check(
    points=1,
    todo=2,
    title="reduce-scatter: shard r ends on rank r",
    look_at="the shard that is complete after the last round",
)
def reduce_scatter(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 4]), draw.choice([5, 6, 8])):
        inputs, rank = draw.tensors(world_size, draw.randrange(4, 40) * world_size), draw.randrange(world_size)
        run = ranks(world_size, alteration=Alteration(rank)).call(submission.ring_reduce_scatter, inputs)
        made_of_messages(run, rank, shards(summed(inputs), world_size), "shards")


@check(
    points=1,
    todo=3,
    title="all-gather: all shards, in order, on every rank",
    look_at="where each arriving shard is put",
)
def all_gather(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 4]), draw.choice([5, 6, 8])):
        inputs, rank = draw.tensors(world_size, draw.randrange(4, 40)), draw.randrange(world_size)
        run = ranks(world_size, alteration=Alteration(rank)).call(submission.ring_all_gather, inputs)
        made_of_messages(run, rank, [torch.cat(inputs)] * world_size, "gathered")


@check(
    points=1, todo=4, title="every rank ends with the sum", look_at="which shard leaves and which arrives in each round"
)
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    alone = draw.tensors(1, shape(draw, 1))
    expect(ranks(1).call(submission.ring_all_reduce, alone).values, "result of one rank").equals(alone)
    for world_size in (*draw.sample([3, 5, 6, 7], 2), 8, draw.randrange(2, 12)):
        all_reduced(ranks, submission, draw, draw.tensors(world_size, shape(draw, world_size)))


@check(points=1, todo=4, title="sizes that do not divide", look_at="how long the last shards are: shorter, or empty")
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    few = draw.choice([3, 5])
    some = few * draw.randrange(few, 30) - draw.randrange(1, few)
    all_reduced(ranks, submission, draw, draw.tensors(few, some))
    # the second leaves the last ranks with nothing
    for world_size, numel in ((few, some), (8, draw.choice([9, 10, 11]))):
        # new inputs for each call: earlier results might be remembered
        inputs = draw.tensors(world_size, numel)
        run = ranks(world_size).call(submission.ring_all_reduce, inputs)
        expect(run.values, "result", easier=EASIER).equals([summed(inputs)] * world_size)
        inputs = draw.tensors(world_size, numel)
        run = ranks(world_size).call(submission.ring_reduce_scatter, inputs)
        expect(run.values, "shards", easier=["reduce_scatter"]).equals(shards(summed(inputs), world_size))
        [wanted] = draw.tensors(1, numel)
        parts = [Args(part, out=torch.zeros(numel)) for part in shards(wanted, world_size)]
        run = ranks(world_size).call(submission.ring_all_gather, parts)
        expect(run.values, "gathered", easier=["all_gather"]).equals([wanted] * world_size)


@check(points=1, todo=4, title="tensors of one element, and of none", look_at="shards that are empty")
def tiny(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5, 8])
    for size in ((1,), (), (0,)):
        inputs = draw.tensors(world_size, size)
        run = ranks(world_size).call(submission.ring_all_reduce, inputs)
        expect(run.values, "result", easier=EASIER).equals([summed(inputs)] * world_size)
        own_messages(run)


@check(
    points=1, todo=4, title="every dtype keeps its precision", look_at="use the given buffer: it has the tensor's dtype"
)
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for dtype in (torch.int64, torch.float64, draw.choice([torch.bfloat16, torch.float16, torch.int32, torch.uint8])):
        world_size = draw.choice([3, 5])
        inputs = draw.tensors(world_size, shape(draw, world_size), dtype)
        if dtype in (torch.int64, torch.float64):
            # odd numbers that need more bits than a float32 has
            inputs = [tensor * 2**31 + 1 for tensor in inputs]
        all_reduced(ranks, submission, draw, inputs)


@check(
    points=1,
    todo=4,
    title="AVG, MAX, MIN and PRODUCT",
    look_at="`combine`, once for each arrival; the division is given",
)
def operations(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for name in ("AVG", "MAX", "MIN", "PRODUCT"):
        world_size = draw.choice([3, 5, 6])
        inputs = draw.tensors(world_size, shape(draw, world_size))
        stacked = torch.stack(inputs)
        wanted = {"AVG": stacked.mean(0), "MAX": stacked.amax(0), "MIN": stacked.amin(0), "PRODUCT": stacked.prod(0)}[
            name
        ]
        arguments = [Args(tensor, op=reduce_op(name)) for tensor in inputs]
        run = ranks(world_size).call(submission.ring_all_reduce, arguments)
        expect(run.values, name, easier=EASIER).close_to([wanted] * world_size)
        own_messages(run)


@check(points=2, todo=4, title="works in place and returns the same tensor", look_at="ring_all_reduce: `out=tensor`")
def in_place(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    inputs = draw.tensors(world_size, shape(draw, world_size))
    run = all_reduced(ranks, submission, draw, inputs)
    for result in run.ranks:
        # the judge reads the memory location; object identity is reported by the rank
        expect(result.returned_argument, "index of the argument that the returned object is").equals(0)
        expect(result.arguments[0], "the tensor that was given").equals(result.value)


@check(
    points=1,
    todo=4,
    title="large tensors do not deadlock",
    look_at="who is still sending when a rank begins to receive",
)
def large(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    all_reduced(ranks, submission, draw, draw.tensors(world_size, world_size << 17))


@check(
    points=1,
    todo=4,
    title="a group of some of the ranks",
    look_at="`ring.group` in each P2POp; `group` for both functions in ring_all_reduce",
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([5, 7, 8])
    order = draw.sample(range(world_size), world_size)
    cut = draw.randrange(2, world_size - 1)
    parts = [sorted(order[:cut]), sorted(order[cut:])]
    inputs, altered = draw.tensors(world_size, 60), draw.randrange(world_size)
    mine = {rank: part for part in parts for rank in part}
    run = ranks(world_size, alteration=Alteration(altered)).call(
        submission.ring_all_reduce, lambda rank: Args(inputs[rank], group=group_of(mine[rank]))
    )
    wanted = [summed([inputs[r] for r in mine[rank]]) for rank in range(world_size)]
    made_of_messages(run, altered, wanted, easier=EASIER)


@check(
    points=1,
    todo=4,
    title="bad arguments raise ValueError before any message",
    look_at="the given lines at the beginning must stay",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    three = ranks(3)
    all_reduced(ranks, submission, draw, draw.tensors(3, 12))
    cases = [
        (submission.ring_all_reduce, Args(draw.tensors(1, 12)[0], op=reduce_op("BAND")), "op"),
        (submission.ring_all_reduce, Args([1.0, 2.0]), "tensor"),
        (submission.ring_all_gather, Args(draw.tensors(1, 12)[0], out=torch.zeros(7)), "out"),
    ]
    for function, arguments, name in cases:
        run = three.attempt(function, [arguments] * 3)
        for result in run.ranks:
            expect(result.error.type if result.error else "no error", f"a bad {name} raises").equals("ValueError")
            expect(result.error.message if result.error else "", "message").contains(name)
        expect(sum(run.trace.messages_sent(rank) for rank in range(3)), "messages sent").equals(0)
    # a strided tensor may be refused or handled, but not left half reduced
    good = draw.tensors(3, 12)
    run = three.attempt(submission.ring_all_reduce, lambda rank: Args(transposed(good[rank].view(3, 4))))
    for result in run.ranks:
        if result.error is not None:
            expect(result.error.type, "a strided tensor raises").equals("ValueError")
        else:
            expect(result.arguments[0], "the strided tensor").equals(summed(good).view(3, 4).t())


# Communication pattern ------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=4,
    title="each rank sends 2(N-1)/N of the bytes",
    look_at="how much of the tensor leaves in each round",
)
def bytes_sent(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([7, 8, 9]), draw.choice([3, 5, 6])):
        numel = draw.randrange(10, 100) * world_size
        run = all_reduced(ranks, submission, draw, draw.tensors(world_size, numel))
        for rank in range(world_size):
            expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank}", unit="bytes").equals(
                2 * (world_size - 1) * numel // world_size * 4
            )


@check(
    points=1,
    todo=4,
    title="sends no padding when the size does not divide",
    look_at="the length of what is sent in each round",
)
def bytes_uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5, 6]), draw.choice([7, 8, 9])):
        numel = draw.randrange(3, 30) * world_size - draw.randrange(1, world_size)
        run = all_reduced(ranks, submission, draw, draw.tensors(world_size, numel))
        # every shard makes N-1 hops, twice: the sum over the ranks is the same for either direction
        sent = [run.trace.bytes_sent(rank) for rank in range(world_size)]
        expect(sum(sent), "bytes sent by all ranks", unit="bytes").equals(2 * (world_size - 1) * numel * 4)
        expect(max(sent), "bytes sent by one rank", unit="bytes").at_most(
            2 * (world_size - 1) * -(-numel // world_size) * 4
        )


@check(points=2, todo=4, title="talks to its neighbour in the ring and to nobody else", look_at="the peer of each send")
def neighbours(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([5, 6, 7]), draw.choice([8, 9, 11])):
        run = all_reduced(ranks, submission, draw, draw.tensors(world_size, 10 * world_size))
        seen = [run.trace.sends_to(rank) for rank in range(world_size)]
        to_the_right, to_the_left = ([{(rank + way) % world_size} for rank in range(world_size)] for way in (1, -1))
        expect(seen, "ranks that each rank sends to").is_one_of(to_the_right, to_the_left)


@check(points=2, todo=4, title="2(N-1) messages from each rank", look_at="the number of rounds")
def messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5]), draw.choice([7, 8, 9])):
        run = all_reduced(ranks, submission, draw, draw.tensors(world_size, 10 * world_size))
        for rank in range(world_size):
            expect(run.trace.messages_sent(rank), f"messages from rank {rank}").equals(2 * (world_size - 1))


@check(
    points=3,
    todo=4,
    title="all links of the ring are busy at once",
    look_at="the timeline: who waits while another one sends",
)
def time(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([7, 8, 9])
    inputs = draw.tensors(world_size, draw.randrange(20_000, 30_000) * world_size)
    run = all_reduced(ranks, submission, draw, inputs, inter_node=LINK)
    shard = inputs[0].numel() * 4 // world_size
    expect(run.trace.seconds, "seconds on the virtual clock", unit="seconds").at_most(
        SLACK * 2 * (world_size - 1) * LINKS[LINK].seconds(shard)
    )


@check(
    points=2,
    todo=4,
    title="real processes: the sum, and no more than 2(N-1)/N of the bytes from each",
    look_at="what may be different with gloo: an order of sends and receives in which all wait, a tensor sent whole",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    inputs = draw.tensors(world_size, draw.randrange(200_000, 300_000) * world_size)
    run = ranks.processes(world_size).call(submission.ring_all_reduce, inputs)
    expect(run.values, "result", easier=EASIER).equals([summed(inputs)] * world_size)
    own_messages(run)
    payload = 2 * (world_size - 1) * inputs[0].numel() * 4
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_least(
        payload
    )
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        HEADERS * payload
    )
