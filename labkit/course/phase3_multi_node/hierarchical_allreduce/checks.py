"""Visible checks and hints of hierarchical_allreduce: two or three nodes of one to four ranks.

Every element of rank r's tensor is 10 ** r: a digit of the result that is not 1 shows whose part is missing or counted
twice. 1011 means that rank 2's part is missing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, NotMeasurable, Ranks, Submission, check, expect, reduce_op
from labkit.course.phase3_multi_node.hierarchical_allreduce.scenarios import groups, reduced
from labkit.hardware import Link, topology
from labkit.trace import bytes_between_nodes, mixed_collectives

SLOW = {"inside": 0.12, "between": 0.02}
"""GB/s of the links in `overlap`."""
HERE = "which ranks are in the group that this collective is called with"


def digits(rank: int, numel: int) -> Tensor:
    return torch.full((numel,), 10.0**rank)


def total(ranks: list[int], numel: int) -> Tensor:
    return torch.full((numel,), sum(10.0**rank for rank in ranks))


def summed(
    submission: Submission, ranks: Ranks, world_size: int, ranks_per_node: Any, numel: int, **options: Any
) -> Any:
    """Run `reduced` on digits."""
    return ranks(world_size).call(
        submission.used_by(reduced), lambda rank: Args(digits(rank, numel), ranks_per_node, **options)
    )


def results(run: Any) -> list[Any]:
    return [value and value[1] for value in run.values]


@check(
    points=3,
    todo=2,
    title="equal nodes: a rank's node, and the ranks in its place on every node",
    look_at="build_node_groups: which ranks own shard k; _join: which of the groups is returned",
)
def equal_nodes(submission: Submission, ranks: Ranks) -> None:
    run = ranks(6).call(submission.used_by(groups), [Args(2)] * 6)
    wanted = [[[2 * (r // 2), 2 * (r // 2) + 1], [r % 2, r % 2 + 2, r % 2 + 4]] for r in range(6)]
    for rank in range(6):
        expect(run.values[rank], f"rank {rank}'s groups inside its node, between nodes").equals(wanted[rank])


@check(
    points=2,
    todo=2,
    title="ranks placed round-robin, and ranks on no node",
    look_at="take the ranks from `nodes`: they need not be consecutive",
)
def placements(submission: Submission, ranks: Ranks) -> None:
    run = ranks(5).call(submission.used_by(groups), [Args([[0, 2], [1, 4]])] * 5)
    wanted = [[[0, 2], [0, 1]], [[1, 4], [0, 1]], [[0, 2], [2, 4]], [None, None], [[1, 4], [2, 4]]]
    for rank in range(5):
        expect(run.values[rank], f"nodes [0, 2], [1, 4]: rank {rank}'s groups").equals(wanted[rank])


@check(
    points=1,
    todo=2,
    title="unequal nodes: owners are spread over the larger node's ranks",
    look_at="rank k * R // K of a node with R ranks owns shard k",
)
def unequal_nodes(submission: Submission, ranks: Ranks) -> None:
    run = ranks(6).call(submission.used_by(groups), [Args([4, 2])] * 6)
    big, small = [0, 1, 2, 3], [4, 5]
    wanted = [[big, [0, 4]], [big, None], [big, [2, 5]], [big, None], [small, [0, 4]], [small, [2, 5]]]
    for rank in range(6):
        expect(run.values[rank], f"nodes of 4 and 2 ranks: rank {rank}'s groups").equals(wanted[rank])


@check(
    points=2,
    todo=3,
    title="every rank ends with the sum of all ranks",
    look_at="step 1 inside the node, step 2 between the nodes, step 3 inside the node",
)
def sums(submission: Submission, ranks: Ranks) -> None:
    for world_size, per_node in ((4, 2), (6, 2), (3, 3), (2, 1)):
        run = summed(submission, ranks, world_size, per_node, 12, chunks=1)
        what = f"sum over {world_size // per_node} x {per_node} ranks, one chunk"
        expect(results(run), what, chunks=per_node, ranks=world_size).equals(
            [total(list(range(world_size)), 12)] * world_size
        )


@check(
    points=2,
    todo=3,
    title="several chunks, and sizes that do not divide",
    look_at="each chunk takes all three steps; the last one is shorter",
)
def chunks(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for numel in (24, draw.choice([13, 17, 23]), 1):
        run = summed(submission, ranks, 4, 2, numel, chunks=3)
        expect(results(run), f"sum of {numel} elements, 3 chunks", chunks=3, easier=["sums"], ranks=4).equals(
            [total([0, 1, 2, 3], numel)] * 4
        )


@check(
    points=2,
    todo=3,
    title="unequal nodes, and ranks placed round-robin",
    look_at="a rank whose `node.shard` is None takes part in steps 1 and 3 only",
)
def other_nodes(submission: Submission, ranks: Ranks) -> None:
    for nodes in ([[0, 1, 2], [3]], [[0, 2], [1, 4]]):
        run = summed(submission, ranks, 5 if 4 in nodes[-1] else 4, nodes, 12)
        members = sorted(nodes[0] + nodes[1])
        wanted = [total(members, 12) if rank in members else None for rank in range(len(run.values))]
        expect(results(run), f"sum over nodes {nodes}", easier=["sums"], ranks=len(wanted)).equals(wanted)


@check(points=1, todo=3, title="works in place and returns the same tensor", look_at="shards are views into `tensor`")
def in_place(submission: Submission, ranks: Ranks) -> None:
    run = summed(submission, ranks, 4, 2, 8)
    given = [result.arguments[0] for result in run.ranks]
    expect(given, "the tensor that was given", easier=["sums"], ranks=4).equals([total([0, 1, 2, 3], 8)] * 4)
    for rank in range(4):
        expect(run.values[rank][0], f"rank {rank} returns the tensor that was given").equals(True)


@check(
    points=2,
    todo=3,
    title="AVG, MAX, MIN and PRODUCT",
    look_at="`wire_op` in steps 1 and 2; AVG divides by all ranks of all nodes",
)
def operations(submission: Submission, ranks: Ranks) -> None:
    wanted = {"AVG": 1111 / 4, "MAX": 1000.0, "MIN": 1.0, "PRODUCT": 1e6}
    for name, value in wanted.items():
        run = summed(submission, ranks, 4, [3, 1], 6, op=reduce_op(name))
        expect(results(run), f"{name} of 1, 10, 100 and 1000", easier=["sums"]).close_to([torch.full((6,), value)] * 4)


@check(
    points=4,
    todo=3,
    title="2(M-1)/M of the bytes leave each node, an equal part from each of its ranks",
    look_at="what travels in step 2: this rank's shard, and nothing else",
)
def traffic(submission: Submission, ranks: Ranks) -> None:
    nodes = [[0, 1], [2, 3], [4, 5]]
    run = ranks(6, nproc_per_node=2).call(
        submission.used_by(reduced), lambda rank: Args(digits(rank, 960), 2, chunks=2)
    )
    expect(results(run), "sum", easier=["sums"], ranks=6).equals([total(list(range(6)), 960)] * 6)
    names = sorted({event.operation for event in mixed_collectives(run.trace, nodes)})
    expect(names, "collectives of several nodes and several ranks of one", look_at=HERE).equals([])
    sent = bytes_between_nodes(run.trace, nodes)
    for rank in range(6):
        # 2(M-1)/M = 4/3 of 3,840 bytes leave a node, by two ranks
        expect(round(sum(sent[rank])), f"bytes that rank {rank} sends to other nodes", unit="bytes").equals(2560)


@check(
    points=3,
    todo=3,
    title="the network and the links inside the nodes work at the same time",
    look_at="start a step of every chunk that can start, before you wait for the next one",
)
def overlap(submission: Submission, ranks: Ranks) -> None:
    inside, between = (Link(name, gb_per_s, 1e-7, "slow, for small tensors") for name, gb_per_s in SLOW.items())
    two = ranks(4, nproc_per_node=2, nics_per_node=2, intra_node=inside, inter_node=between)
    seconds = []
    for count in (1, 8):
        given = [torch.full((160_000,), float(rank + count)) for rank in range(4)]
        run = two.call(submission.used_by(reduced), [Args(tensor, 2, chunks=count) for tensor in given])
        if run.trace.clock != "modelled":
            raise NotMeasurable("time is exact on virtual ranks only")
        expect(results(run), "sum", easier=["sums", "chunks"]).equals([given[0] * 4 + 6] * 4)
        seconds.append(run.trace.seconds)
    what = "seconds with 8 chunks; 0.93 of those with one are"
    expect(seconds[1], what, unit="seconds").at_most(0.93 * seconds[0])


def planned(submission: Submission, ranks: Ranks, placed: list[tuple[int, int]], count: int) -> list[list[int]]:
    """Return the planned rings; expect `count`, each with all ranks."""
    rings = ranks(1).call(submission.plan_ring, [Args(placed)]).values[0]
    number = len(rings) if isinstance(rings, list) else rings
    expect(number, f"number of rings for nodes with {count} card{'s' * (count > 1)}").equals(count)
    for ring in rings:
        seen = sorted(ring) if isinstance(ring, list) and all(type(rank) is int for rank in ring) else ring
        expect(seen, "ranks in a ring, sorted").equals(list(range(len(placed))))
    return list(rings)


@check(
    points=1,
    todo=4,
    title="plan_ring: all ranks once, each node entered and left once",
    look_at="the ranks of a node follow each other in the ring",
)
def borders(submission: Submission, ranks: Ranks) -> None:
    placed = [(0, 0), (1, 0), (2, 0)] * 2
    for ring in planned(submission, ranks, placed, 1):
        crossed = sum(placed[a][0] != placed[b][0] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
        expect(crossed, f"node borders that the ring {ring} crosses").equals(3)


@check(
    points=2,
    todo=4,
    title="plan_ring: the rings enter and leave each node through all of its cards",
    look_at="in ring r a node's cards begin with card r mod C; the others follow",
)
def cards(submission: Submission, ranks: Ranks) -> None:
    cluster = topology(nnodes=2, nproc_per_node=4, nics_per_node=2)
    placed = [cluster.nic_of(rank) for rank in range(8)]
    for r, ring in enumerate(planned(submission, ranks, placed, 2)):
        pairs = list(zip(ring, ring[1:] + ring[:1], strict=True))
        crossing = [(placed[a], placed[b]) for a, b in pairs if placed[a][0] != placed[b][0]]
        expect(len(crossing), f"node borders that ring {r}, {ring}, crosses").equals(2)
        expect(sorted(card for _, card in crossing), f"(node, card) through which ring {r} enters").equals(
            [(0, r), (1, r)]
        )
        expect(sorted(card for card, _ in crossing), f"(node, card) through which ring {r} leaves").equals(
            [(0, 1 - r), (1, 1 - r)]
        )


HINTS: dict[int, list[str]] = {
    1: [
        "Take two nodes with 4 and 2 ranks. Two ranks of each node own a shard, since the smaller one has no more. "
        "Which two of the four, if ranks 0 and 1 share one network card and ranks 2 and 3 the other?",
        "With K shards, `owners[m]` has K ranks of `nodes[m]`, at places that are len(node) / K apart. An inter-node "
        "group has the owners of one shard: the first entries of all `owners`, the second ones, and so on.",
        "`shards = min(len(node) for node in nodes)`, `owners = [[node[k * len(node) // shards] for k in "
        "range(shards)] for node in nodes]`, `intra_node_group = _join(nodes)` and `inter_node_group = "
        "_join(list(zip(*owners)))`.",
    ],
    2: [
        "A rank that makes only its own groups waits for the others, which are making another one. So the loop is the "
        "same on every rank; only what is kept differs.",
        "For each list: create the group, whether this rank is in it or not. Keep it if `dist.get_rank()` is in the "
        "list.",
        "`for ranks in groups:` then `group = dist.new_group(list(ranks))`, then `if dist.get_rank() in ranks: mine = "
        "group`.",
    ],
    3: [
        "First write it for one chunk, waiting after each step. Then think about two chunks: while chunk 0 crosses the "
        "network, what can chunk 1 do?",
        "With C chunks there are C + 2 slots: in the last one the last chunk starts step 3. Each step has its own "
        "`if`, since not every slot has a chunk for it. Keep what a step has started in a list, one for each step: "
        "the next step waits for it, one slot later. At the end wait for all of step 3.",
        "In slot s: `if s < C: reduced.append(start_reduce_scatter(pieces[s], node, wire_op))`. `if 0 < s <= C`: "
        "`reduced[s - 1].wait()`, and unless `node.shard` is None, `crossing.append(dist.all_reduce(pieces[s - 1]"
        "[node.shard], wire_op, inter_node_group, async_op=True))`. `if s > 1`: unless `node.shard` is None, "
        "`crossing[s - 2].wait()` and `div_` for AVG; then `shared.append(start_all_gather(pieces[s - 2], node))`.",
    ],
    4: [
        "A ring that lists one node's ranks, then the next one's, crosses as many borders as there are nodes. It "
        "enters a node at the first rank that it lists there, and leaves it from the last.",
        "Ring r begins in each node with the ranks of card r, goes on with card r + 1, and so on around: so the last "
        "one listed is card r - 1. Count cards modulo the node's own number of them.",
        "For `first` in `range(max(len(node) for node in cards))`: per node `turned = node[first % len(node):] + "
        "node[: first % len(node)]`; the ring has each rank of each card of each turned node, in that order.",
    ],
}
