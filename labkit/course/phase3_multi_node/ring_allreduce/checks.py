"""Visible checks and hints of ring_allreduce: small runs, so that a wrong number can be traced by hand.

Every element of rank r's tensor is 10 ** r: a digit of the result that is not 1 shows whose part is missing or counted
twice. 1011 means that rank 2's part is missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, reduce_op


def digits(rank: int, numel: int) -> Tensor:
    return torch.full((numel,), 10.0**rank)


def total(world_size: int, numel: int) -> Tensor:
    return torch.full((numel,), (10.0**world_size - 1) / 9)


@check(
    points=2,
    todo=2,
    title="reduce-scatter leaves shard r on rank r",
    look_at="the shard that is complete after the last round",
)
def reduce_scatter(submission: Submission, ranks: Ranks) -> None:
    shards = [torch.arange(8.0)[2 * r : 2 * r + 2] for r in range(4)]
    run = ranks(4).call(submission.ring_reduce_scatter, lambda rank: torch.arange(8.0))
    expect(run.values, "shards of 4 x arange(8)").equals([4 * shard for shard in shards])


@check(
    points=2,
    todo=3,
    title="all-gather puts the shards in order on every rank",
    look_at="where each arriving shard is put",
)
def all_gather(submission: Submission, ranks: Ranks) -> None:
    run = ranks(4).call(submission.ring_all_gather, lambda rank: torch.tensor([2.0 * rank, 2.0 * rank + 1]))
    expect(run.values, "arange(8)", chunks=4).equals([torch.arange(8.0)] * 4)


@check(
    points=3,
    todo=4,
    title="every rank ends with the sum of all ranks",
    look_at="which shard leaves and which arrives in each round",
)
def sums(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for n in (4, 1, draw.choice([2, 3, 5])):
        run = ranks(n).call(submission.ring_all_reduce, [digits(rank, 2 * n) for rank in range(n)])
        expect(run.values, f"sum over {n} ranks", chunks=n, ranks=n).equals([total(n, 2 * n)] * n)


@check(
    points=3,
    todo=4,
    title="sizes that do not divide by the number of ranks",
    look_at="`_exchange` skips empty tensors; what arrives is as long as `mine`",
)
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for numel in (draw.choice([5, 9, 10, 11]), 1):
        run = ranks(4).call(submission.ring_all_reduce, [digits(rank, numel) for rank in range(4)])
        expect(run.values, f"sum of {numel} elements on 4 ranks", chunks=4, easier=["sums"], ranks=4).equals(
            [total(4, numel)] * 4
        )


@check(points=3, todo=4, title="works in place and returns the same tensor", look_at="ring_all_reduce: `out=tensor`")
def in_place(submission: Submission, ranks: Ranks) -> None:
    run = ranks(3).call(submission.ring_all_reduce, lambda rank: digits(rank, 6))
    given = [result.arguments[0] for result in run.ranks]
    hint = "what the tensor that was given holds after the call"
    expect(given, "the tensor that was given", look_at=hint, chunks=3, easier=["sums"], ranks=3).equals(
        [total(3, 6)] * 3
    )
    for result in run.ranks:
        returned = "the tensor that was given" if result.returned_argument == 0 else "another object"
        expect(returned, f"rank {result.rank} returns").equals("the tensor that was given")


@check(
    points=5,
    todo=4,
    title="each rank sends 2(N-1)/N of the bytes, by itself",
    look_at="how much of the tensor leaves in each round",
)
def traffic(submission: Submission, ranks: Ranks) -> None:
    run = ranks(4).call(submission.ring_all_reduce, lambda rank: digits(rank, 1024))
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives", look_at="the ring is made of sends and receives").equals([])
    for rank in range(4):
        expect(run.trace.bytes_sent(rank), f"bytes sent by rank {rank} (2 x 3/4 of 4096)", unit="bytes").equals(6144)


@check(
    points=5,
    todo=4,
    title="2(N-1) messages, to one neighbour only",
    look_at="the peer of each send, and the number of rounds",
)
def neighbours(submission: Submission, ranks: Ranks) -> None:
    run = ranks(5).call(submission.ring_all_reduce, lambda rank: digits(rank, 20))
    seen = [run.trace.sends_to(rank) for rank in range(5)]
    to_the_right, to_the_left = ([{(rank + way) % 5} for rank in range(5)] for way in (1, -1))
    expect(seen, "ranks that ranks 0-4 send to").is_one_of(to_the_right, to_the_left)
    for rank in range(5):
        expect(run.trace.messages_sent(rank), f"messages from rank {rank}").equals(8)


@check(
    points=2,
    todo=4,
    title="other operations, and a group of some ranks",
    look_at="`ring.group` in each P2POp; `group` for both functions in ring_all_reduce",
)
def operations_and_groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    operation, value = draw.choice([("MAX", 100.0), ("MIN", 1.0), ("AVG", 37.0), ("PRODUCT", 1000.0)])
    run = ranks(3).call(submission.ring_all_reduce, lambda rank: Args(digits(rank, 6), op=reduce_op(operation)))
    expect(run.values, operation, chunks=3, easier=["sums"]).equals([torch.full((6,), value)] * 3)
    halves = ([0, 2], [1, 3])
    run = ranks(4).call(
        submission.ring_all_reduce, lambda rank: Args(digits(rank, 4), group=group_of(halves[rank % 2]))
    )
    expect(run.values, "sums within ranks 0, 2 and within 1, 3", easier=["sums"], ranks=4).equals(
        [torch.full((4,), s) for s in (101.0, 1010.0) * 2]
    )


HINTS = {
    1: [
        "If every rank sends first and waits for that to end, nobody receives: each waits for its right neighbour, "
        "around the ring. So both transfers must be under way before you wait for either of them.",
        "`dist.batch_isend_irecv` starts all transfers of a list and returns their works. The list has one "
        "`dist.P2POp` for the send to `ring.right` and one for the receive from `ring.left`. A tensor without "
        "elements gets no entry, and an empty list must not be passed.",
        "Put `dist.P2POp(dist.isend, outgoing, ring.right, ring.group)` into `batch` if `outgoing.numel()`, and "
        "`dist.P2POp(dist.irecv, incoming, ring.left, ring.group)` if `incoming.numel()`. Then, unless `batch` is "
        "empty: `for work in dist.batch_isend_irecv(batch): work.wait()`.",
    ],
    2: [
        "Take three ranks and shards A, B, C. Write down, round by round, what each rank holds: A0 for rank 0's own "
        "part of A, A01 once rank 1's part is in it. After two rounds rank 0 holds A012. Which shard arrived there "
        "in the last round, and which in the round before?",
        "What arrives in one round is what you send on in the next. So the number of the shard that you send falls "
        "by one from round to round, and the shard that you receive is the one below it, modulo the number of "
        "ranks. In the last round, step N-2, shard `rank` arrives. Go back to step 0, and write both numbers as "
        "functions of `rank` and `step`.",
        "Each step: `outgoing = shards[(rank - step - 1) % N]` and `mine = shards[(rank - step - 2) % N]`. Exchange "
        "`outgoing` for `received = buffer[: mine.numel()]`, then `combine(mine, received, out=mine)`.",
    ],
    3: [
        "Only your own shard is complete at first, so it is what you can send. What your left neighbour sends you "
        "in a round, your right neighbour still lacks: you send it in the next.",
        "The number of the shard that you send falls by one from round to round, and the shard that you receive is "
        "the one below it, counted modulo the number of ranks. It arrives straight in `shards`: nothing is combined "
        "here, so no buffer is needed.",
        "`shards[ring.rank].copy_(own)`. Then, for each `step` in `range(N - 1)`, `_exchange(shards[(rank - step) % "
        "N], shards[(rank - step - 1) % N], ring)`.",
    ],
    4: [
        "What reduce-scatter leaves on a rank is what all-gather begins with. Where in memory is it?",
        "`ring_reduce_scatter` returns a view into `tensor`. `ring_all_gather` fills `out`, and `shard` may be the "
        "view of it that belongs there. Only the first of them needs `op`; both need `group`.",
        "`shard = ring_reduce_scatter(tensor, group, op=op)`, then `ring_all_gather(shard, group, out=tensor)`.",
    ],
}
