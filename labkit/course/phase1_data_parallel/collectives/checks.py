"""Visible checks and hints of collectives: small runs, so that a wrong number can be traced by hand.

Every element of rank r's tensor is 10 ** r: a digit of a sum that is not 1 shows whose part is missing or counted
twice. 1011 means that rank 2's part is missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, reduce_op
from labkit.clusters import Run
from labkit.trace.rounds import rounds

ALL_REDUCES = ("all_reduce_naive", "all_reduce_tree", "all_reduce_recursive_doubling")


def digits(rank: int, numel: int = 4) -> Tensor:
    return torch.full((numel,), 10.0**rank)


def total(world_size: int, numel: int = 4) -> Tensor:
    return torch.full((numel,), (10.0**world_size - 1) / 9)


def depth(world_size: int) -> int:
    """Return the base-2 logarithm, rounded up."""
    return (world_size - 1).bit_length()


def own_messages(run: Run) -> None:
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives called", look_at="only sends and receives are allowed").equals([])


@check(
    points=2,
    todo=1,
    title="broadcast: every rank ends with what src holds",
    look_at="in the round that goes wrong: who has the data, and who receives it",
)
def broadcasts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for n, src in ((4, 0), (1, 0), (4, draw.choice([1, 2, 3])), (draw.choice([3, 5, 6]), 2)):
        run = ranks(n).call(submission.broadcast, [Args(digits(rank), src) for rank in range(n)])
        expect(run.values, f"rank {src}'s tensor on {n} ranks").equals([digits(src)] * n)
        own_messages(run)


@check(
    points=2,
    todo=2,
    title="reduce: rank dst ends with the sum of all",
    look_at="the tree of broadcast, backwards: who sends in the first round; what `combine` reads, and where it writes",
)
def reduces(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for n, dst in ((4, 0), (1, 0), (4, draw.choice([1, 2, 3])), (draw.choice([3, 5, 6]), 2)):
        run = ranks(n).call(submission.reduce, [Args(digits(rank), dst) for rank in range(n)])
        wanted = [total(n) if rank == dst else None for rank in range(n)]
        expect(run.values, f"sum over {n} ranks", ranks=n).equals(wanted)
        own_messages(run)


@check(
    points=3,
    todo=3,
    title="all-gather: row r is rank r's tensor, on every rank",
    look_at="which rows arrive in each round, and how far the rows are turned at the end",
)
def gathers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for n in (2, 4, draw.choice([3, 5, 6])):
        run = ranks(n).call(submission.all_gather, lambda rank: torch.full((2,), float(rank)))
        wanted = torch.arange(float(n)).repeat_interleave(2).view(n, 2)
        expect(run.values, f"rows 0-{n - 1}, where rank r gave r", chunks=n).equals([wanted] * n)
        own_messages(run)


@check(
    points=4,
    todo=4,
    title="the three all-reduces: every rank ends with the sum",
    look_at="the digit that is not 1: whose part is missing, or there twice",
)
def all_reduces(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for name in ALL_REDUCES:
        for n in (4, 1, draw.choice([3, 5, 6])):
            run = ranks(n).call(getattr(submission, name), lambda rank: digits(rank))
            expect(run.values, f"{name} over {n} ranks", ranks=n).equals([total(n)] * n)
            own_messages(run)


@check(
    points=4,
    todo=2,
    title="trees: N-1 messages, in ceil(log2 N) rounds",
    look_at="who could have sent already, and did not: part 5 of the notebook draws your rounds",
)
def trees(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for n in (8, draw.choice([5, 6, 7])):
        for name in ("broadcast", "reduce"):
            root = draw.randrange(n)
            run = ranks(n).call(getattr(submission, name), [Args(digits(rank), root) for rank in range(n)])
            counted(run, f"{name} on {n} ranks", n - 1, 16 * (n - 1), depth(n))
        run = ranks(n).call(submission.all_reduce_tree, lambda rank: digits(rank))
        counted(run, f"all_reduce_tree on {n} ranks", 2 * (n - 1), 32 * (n - 1), 2 * depth(n))


@check(
    points=3,
    todo=4,
    title="all-gather and recursive doubling: log2 N rounds, everybody busy in each",
    look_at="how much each rank sends in a round, and whether it receives at the same time",
)
def exchanges(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for n in (8, 4, draw.choice([3, 5, 6])):
        run = ranks(n).call(submission.all_gather, lambda rank: digits(rank))
        counted(run, f"all_gather on {n} ranks", n * depth(n), 16 * n * (n - 1), depth(n))
        run = ranks(n).call(submission.all_reduce_recursive_doubling, lambda rank: digits(rank))
        core = 1 << (n.bit_length() - 1)  # the other ranks send once and receive once
        messages = core * depth(core) + 2 * (n - core)
        allowed = depth(core) + 2 * (n != core)
        counted(run, f"recursive doubling on {n} ranks", messages, 16 * messages, allowed)


def counted(run: Run, what: str, messages: int, nbytes: int, allowed: int) -> None:
    n = run.trace.world_size
    own_messages(run)
    expect(sum(run.trace.messages_sent(rank) for rank in range(n)), f"{what}: messages").equals(messages)
    expect(sum(run.trace.bytes_sent(rank) for rank in range(n)), f"{what}: bytes in all", unit="bytes").equals(nbytes)
    if run.trace.clock == "modelled":  # between real processes a message may be sent long before its receive is posted
        expect(rounds(run.trace), f"{what}: rounds, one after the other").at_most(allowed)


@check(
    points=2,
    todo=4,
    title="in place, other operations, a group of some ranks",
    look_at="what is returned; places in the group, not in the world",
)
def in_place_and_groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    operation, value = draw.choice([("MAX", 100.0), ("MIN", 1.0), ("AVG", 37.0), ("PRODUCT", 1000.0)])
    for name in ALL_REDUCES:
        run = ranks(3).call(getattr(submission, name), lambda rank: Args(digits(rank), op=reduce_op(operation)))
        given = [result.arguments[0] for result in run.ranks]
        what = f"{name}, {operation}: the tensor that was given"
        look_at = "whether `combine` puts parts together, which knows the operation, and writes into `data`"
        expect(given, what, look_at=look_at).equals([torch.full((4,), value)] * 3)
        for result in run.ranks:
            returned = "the tensor that was given" if result.returned_argument == 0 else "another object"
            expect(returned, f"{name}: rank {result.rank} returns").equals("the tensor that was given")
    halves = ([0, 2], [1, 3])
    sums = [torch.full((4,), s) for s in (101.0, 1010.0) * 2]
    for name in ALL_REDUCES:
        run = ranks(4).call(
            getattr(submission, name), lambda rank: Args(digits(rank), group=group_of(halves[rank % 2]))
        )
        expect(run.values, f"{name} within ranks 0, 2 and within 1, 3", ranks=4).equals(sums)
    # src is a global rank, as in torch.distributed
    run = ranks(4).call(
        submission.broadcast, lambda rank: Args(digits(rank), 2 + rank % 2, group=group_of(halves[rank % 2]))
    )
    expect(run.values, "broadcast from rank 2 to 0, and from 3 to 1").equals([digits(2), digits(3)] * 2)


HINTS = {
    1: [
        "Draw eight ranks in a row, and rank 0 with the data. One round doubles how many have it, so three rounds "
        "must do: 0 sends to 4; then 0 to 2 and 4 to 6; then 0 to 1, 2 to 3, 4 to 5, 6 to 7. For each round, write "
        "down the places that send and the distance. What do those places have in common, and what those that "
        "receive?",
        "In the round with `distance`, the places that have the data are the multiples of `2 * distance`, and the "
        "place `distance` after each of them receives. The distances are `_distances(row.size)`, the largest first.",
        "Each round: if `row.place % (2 * distance) == distance`, receive from `row.place - distance`; if "
        "`row.place % (2 * distance) == 0` and `row.place + distance < row.size`, send to `row.place + distance`.",
    ],
    2: [
        "Read your rounds of broadcast from the last to the first, with every arrow turned round. Who sends in the "
        "first round of reduce, and to whom?",
        "The distances are `_distances(row.size)`, the smallest first. The place that received in broadcast sends "
        "now. The other one receives into `part`, since `data` holds its own sum so far, and combines.",
        "Each round: if `row.place % (2 * distance) == distance`, `row.send(data, row.place - distance)`; if it is "
        "0 and `row.place + distance < row.size`, `row.receive(part, row.place + distance)` and `combine(data, "
        "part, out=data)`.",
    ],
    3: [
        "Take five ranks. After one round you hold two rows, after two rounds four; one is missing. Which rows does "
        "the place `held` after yours hold that you lack, and which of your rows does the place `held` before yours "
        "lack?",
        "While you hold `held` rows you send the first `min(held, row.size - held)` of them to the place `held` "
        "before yours, counted modulo the size, and receive as many from the place `held` after yours, into the "
        "rows from `held` on. At the end row 0 is your own, and it belongs into row `row.place`.",
        "For `held` in `_distances(row.size)`, with `more = min(held, row.size - held)`: `row.exchange(rows[:more], "
        "(row.place - held) % row.size, rows[held : held + more], (row.place + held) % row.size)`. At the end `rows "
        "= rows.roll(row.place, dims=0)`.",
    ],
    4: [
        "Begin with eight ranks. In the first round places 0 and 1 exchange, 2 and 3, and so on; then 0 and 2, 1 "
        "and 3; then 0 and 4, 1 and 5. Write the places in binary: how does your partner's differ from yours? What "
        "do you hold after each round?",
        "`row.place ^ distance` is the place that differs in one bit: exchange with it for each of "
        "`_distances(core)`, and combine. With six ranks `core` is 4: places 4 and 5 send to 0 and 1 before that, "
        "and receive the result from there after it.",
        "From `core` on: `row.send(data, row.place - core)`, then `row.receive(data, row.place - core)`. Below: if "
        "`row.place + core < row.size`, receive into `part` from there and combine; for each `distance` in "
        "`_distances(core)`, with `other = row.place ^ distance`, `row.exchange(data, other, part, other)` and "
        "`combine(data, part, out=data)`; last, send `data` to `row.place + core` if it exists.",
    ],
}
