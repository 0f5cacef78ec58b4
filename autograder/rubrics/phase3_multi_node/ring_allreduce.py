"""Hidden rubric of ring_allreduce: 25 points, 12 for the right values and 13 for how they come about.

What is judged is what the ranks returned and the messages that they sent; no check reads source text. A value earns
its points only when it was made of the learner's own messages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.checks import (
    Args,
    Draw,
    Mutant,
    NotMeasurable,
    Ranks,
    RankSet,
    Submission,
    check,
    expect,
    group_of,
    is_close,
    reduce_op,
    transposed,
)
from labkit.clusters import Run
from labkit.hardware import LINKS

LINK = "ethernet-10g"
SLACK = 2.5
"""A ring that sends and receives in turn takes twice the time of one that does both at once; both are right."""
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
"""What `labkit integrity` points at wherever it is named, under any other name too; it costs no marks by itself."""


def own_messages(run: Run) -> None:
    """Nothing that the library offers as a collective took part."""
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives called", look_at="the ring is made of sends and receives").equals([])


def all_reduced(ranks: RankSet, submission: Submission, inputs: list[Tensor], *args: object) -> Run:
    """Run ring_all_reduce on `inputs`, one for each rank, and expect the sum (or what `args` ask for) on every rank."""
    run = ranks.call(submission.ring_all_reduce, [Args(tensor, *args) for tensor in inputs])
    expect(run.values, "result").equals([summed(inputs)] * len(inputs))
    own_messages(run)
    return run


def summed(inputs: list[Tensor]) -> Tensor:
    total = inputs[0].clone()
    for tensor in inputs[1:]:
        total += tensor
    return total


def shards(tensor: Tensor, count: int) -> list[Tensor]:
    """The contract's shards: ceil(numel / count) elements each, the last shorter or empty."""
    flat = tensor.reshape(-1)
    length = -(-flat.numel() // count)
    return [flat[index * length : (index + 1) * length] for index in range(count)]


def shape(draw: Draw, world_size: int) -> tuple[int, ...]:
    """A size that divides by the number of ranks, as one or two dimensions."""
    length = draw.randrange(2, 40) * world_size
    return draw.choice([(length,), (draw.randrange(2, 5), length)])


# Values ---------------------------------------------------------------------------------------------------------------


@check(points=1, title="every rank ends with the sum", look_at="which shard leaves and which arrives in each round")
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (1, 3, 5, 8, draw.randrange(2, 10)):
        all_reduced(ranks(world_size), submission, draw.tensors(world_size, shape(draw, world_size)))


@check(
    points=1, title="reduce-scatter: shard r ends on rank r", look_at="the shard that is complete after the last round"
)
def reduce_scatter(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (3, draw.choice([5, 8])):
        inputs = draw.tensors(world_size, draw.randrange(2, 40) * world_size)
        run = ranks(world_size).call(submission.ring_reduce_scatter, inputs)
        expect(run.values, "shards").equals(shards(summed(inputs), world_size))
        own_messages(run)


@check(points=1, title="all-gather: all shards, in order, on every rank", look_at="where each arriving shard is put")
def all_gather(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (3, draw.choice([5, 8])):
        inputs = draw.tensors(world_size, draw.randrange(2, 40))
        run = ranks(world_size).call(submission.ring_all_gather, inputs)
        expect(run.values, "gathered").equals([torch.cat(inputs)] * world_size)
        own_messages(run)


@check(points=1, title="sizes that do not divide", look_at="how long the last shards are: shorter, or empty")
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    few = draw.choice([3, 5])
    # the second leaves the last ranks with nothing
    for world_size, numel in ((few, few * draw.randrange(3, 30) - draw.randrange(1, few)), (8, 10)):
        inputs = draw.tensors(world_size, numel)
        all_reduced(ranks(world_size), submission, inputs)
        run = ranks(world_size).call(submission.ring_reduce_scatter, inputs)
        parts = shards(summed(inputs), world_size)
        expect(run.values, "shards").equals(parts)
        whole = torch.zeros(numel)
        run = ranks(world_size).call(submission.ring_all_gather, [Args(part, out=whole) for part in parts])
        expect(run.values, "gathered").equals([summed(inputs)] * world_size)


@check(points=1, title="tensors of one element, and of none", look_at="shards that are empty")
def tiny(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5, 8])
    for size in ((1,), (), (0,)):
        inputs = draw.tensors(world_size, size)
        run = ranks(world_size).call(submission.ring_all_reduce, inputs)
        expect(run.values, "result").equals([summed(inputs)] * world_size)
        own_messages(run)


@check(points=1, title="every dtype keeps its precision", look_at="the dtype of the buffer that receives")
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for dtype in (torch.int64, torch.float64, draw.choice([torch.bfloat16, torch.float16, torch.int32, torch.uint8])):
        world_size = draw.choice([3, 5])
        inputs = draw.tensors(world_size, shape(draw, world_size), dtype)
        if dtype in (torch.int64, torch.float64):
            # odd numbers that need more bits than a float32 has
            inputs = [tensor * 2**31 + 1 for tensor in inputs]
        all_reduced(ranks(world_size), submission, inputs)


@check(points=1, title="AVG, MAX, MIN and PRODUCT", look_at="how two shards are combined, and when AVG divides")
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
        expect(run.values, name).close_to([wanted] * world_size)
        own_messages(run)


@check(points=2, title="works in place and returns the same tensor", look_at="the object that is returned")
def in_place(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    inputs = draw.tensors(world_size, shape(draw, world_size))
    run = all_reduced(ranks(world_size), submission, inputs)
    for result in run.ranks:
        expect(result.returned_argument, "index of the argument that the returned object is").equals(0)
        expect(result.arguments[0], "the tensor that was given").equals(summed(inputs))


@check(points=1, title="large tensors do not deadlock", look_at="who is still sending when a rank begins to receive")
def large(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 5])
    all_reduced(ranks(world_size), submission, draw.tensors(world_size, world_size << 17))


@check(
    points=1, title="a group of some of the ranks", look_at="rank, size and neighbours: of the group, not of the world"
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([5, 7, 8])
    order = draw.sample(range(world_size), world_size)
    cut = draw.randrange(2, world_size - 1)
    parts = [sorted(order[:cut]), sorted(order[cut:])]
    inputs = draw.tensors(world_size, 60)
    mine = {rank: part for part in parts for rank in part}
    run = ranks(world_size).call(
        submission.ring_all_reduce, lambda rank: Args(inputs[rank], group=group_of(mine[rank]))
    )
    expect(run.values, "result").equals([summed([inputs[r] for r in mine[rank]]) for rank in range(world_size)])
    own_messages(run)


@check(
    points=1, title="bad arguments raise ValueError before any message", look_at="what is tested at the very beginning"
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    three = ranks(3)
    good = draw.tensors(3, 12)
    all_reduced(three, submission, good)
    cases = [
        (submission.ring_all_reduce, Args(good[0], op=reduce_op("BAND")), "op"),
        (submission.ring_all_reduce, Args([1.0, 2.0]), "tensor"),
        (submission.ring_all_gather, Args(good[0], out=torch.zeros(7)), "out"),
    ]
    for function, arguments, name in cases:
        run = three.attempt(function, [arguments] * 3)
        for result in run.ranks:
            expect(result.error.type if result.error else "no error", f"a bad {name} raises").equals("ValueError")
            expect(result.error.message if result.error else "", "message").contains(name)
        expect(sum(run.trace.messages_sent(rank) for rank in range(3)), "messages sent").equals(0)
    # a tensor with strides may be refused or handled, but not be left half reduced
    run = three.attempt(submission.ring_all_reduce, lambda rank: Args(transposed(good[rank].view(3, 4))))
    for result in run.ranks:
        if result.error is not None:
            expect(result.error.type, "a strided tensor raises").equals("ValueError")
        else:
            expect(result.arguments[0], "the strided tensor").equals(summed(good).view(3, 4).t())


# How they come about --------------------------------------------------------------------------------------------------


@check(points=4, title="each rank sends 2(N-1)/N of the bytes", look_at="how much of the tensor leaves in each round")
def bytes_sent(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (8, draw.choice([3, 5, 6])):
        numel = draw.randrange(10, 100) * world_size
        run = ranks(world_size).call(submission.ring_all_reduce, draw.tensors(world_size, numel))
        own_messages(run)
        for rank in range(world_size):
            expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank}").equals(
                2 * (world_size - 1) * numel // world_size * 4
            )


@check(
    points=1, title="sends no padding when the size does not divide", look_at="the length of what is sent in each round"
)
def bytes_uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (5, 8):
        numel = draw.randrange(3, 30) * world_size - draw.randrange(1, world_size)
        run = ranks(world_size).call(submission.ring_all_reduce, draw.tensors(world_size, numel))
        own_messages(run)
        # every shard makes N-1 hops, twice: the sum over the ranks is the same for either direction
        sent = [run.trace.bytes_sent(rank) for rank in range(world_size)]
        expect(sum(sent), "bytes sent by all ranks").equals(2 * (world_size - 1) * numel * 4)
        expect(max(sent), "bytes sent by one rank").at_most(2 * (world_size - 1) * -(-numel // world_size) * 4)


@check(points=3, title="talks to its neighbour in the ring and to nobody else", look_at="the peer of each send")
def neighbours(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (5, 8):
        run = ranks(world_size).call(submission.ring_all_reduce, draw.tensors(world_size, 10 * world_size))
        own_messages(run)
        seen = [run.trace.sends_to(rank) for rank in range(world_size)]
        to_the_right, to_the_left = ([{(rank + way) % world_size} for rank in range(world_size)] for way in (1, -1))
        expect(seen, "ranks that each rank sends to").is_one_of(to_the_right, to_the_left)


@check(points=2, title="2(N-1) messages from each rank", look_at="the number of rounds")
def messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (draw.choice([3, 5]), 8):
        run = ranks(world_size).call(submission.ring_all_reduce, draw.tensors(world_size, 10 * world_size))
        own_messages(run)
        for rank in range(world_size):
            expect(run.trace.messages_sent(rank), f"messages from rank {rank}").equals(2 * (world_size - 1))


@check(
    points=3, title="all links of the ring are busy at once", look_at="the timeline: who waits while another one sends"
)
def time(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = 8
    inputs = draw.tensors(world_size, draw.randrange(20_000, 30_000) * world_size)
    run = ranks(world_size, inter_node=LINK).call(submission.ring_all_reduce, inputs)
    if run.trace.clock != "modelled":
        raise NotMeasurable("time is judged on virtual ranks, where the network is known")
    expect(is_close(run.values[0], summed(inputs)), "the sum is right").equals(True)
    own_messages(run)
    shard = inputs[0].numel() * 4 // world_size
    expect(run.trace.seconds, "seconds on the virtual clock").at_most(
        SLACK * 2 * (world_size - 1) * LINKS[LINK].seconds(shard)
    )


# Wrong solutions, what they earn, and the checks that they lose -------------------------------------------------------

VALUES = {
    "values", "reduce_scatter", "all_gather", "uneven", "tiny", "dtypes", "operations", "in_place", "large", "groups",
    "bad_arguments",
}  # fmt: skip
TRAFFIC = {"bytes_sent", "bytes_uneven", "neighbours", "messages"}
EVERYTHING = VALUES | TRAFFIC | {"time"}

MUTANTS = {
    "calls_all_reduce": Mutant(0, loses=EVERYTHING),
    # one element: the other shards are empty, so there is no cycle of senders
    "everybody_sends_first": Mutant(1, loses=EVERYTHING - {"tiny"}),
    "one_round_short": Mutant(3, loses=EVERYTHING - {"neighbours"}),
    "gathers_to_rank_0": Mutant(12, loses=TRAFFIC | {"time"}),
    "sends_whole_tensor": Mutant(17, loses={"bytes_sent", "bytes_uneven", "time"}),
    "wrong_when_uneven": Mutant(22, loses={"uneven", "tiny", "bytes_uneven"}),
    "wrong_for_one_element": Mutant(24, loses={"tiny"}),
    "returns_a_copy": Mutant(23, loses={"in_place"}),
    "crosses_the_ring": Mutant(22, loses={"neighbours"}),
    "one_rank_at_a_time": Mutant(22, loses={"time"}),
    "sends_padding": Mutant(24, loses={"bytes_uneven"}),
    "splits_messages": Mutant(23, loses={"messages"}),
    "shards_shifted": Mutant(23, loses={"reduce_scatter", "uneven"}),
    "ignores_group": Mutant(24, loses={"groups"}),
    "always_sums": Mutant(24, loses={"operations"}),
    "casts_to_float32": Mutant(24, loses={"dtypes"}),
    "checks_nothing": Mutant(24, loses={"bad_arguments"}),
    "four_ranks_only": Mutant(0, loses=EVERYTHING),
    "prints_the_answer": Mutant(0, loses=EVERYTHING),
    "does_nothing": Mutant(0, loses=EVERYTHING),
}
