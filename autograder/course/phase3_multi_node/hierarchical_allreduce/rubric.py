"""Hidden rubric of hierarchical_allreduce: 25 points, 13 for groups and values, 12 for traffic, time and rings.

Which bytes cross between nodes is read from the messages and collectives that the judge routes, with the nodes that the
judge has drawn: which groups a submission says that it made is not asked there. Any collectives and messages are
allowed, except collectives that have ranks of several nodes and several ranks of one: a library would run them on its
own hierarchy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.rubric_support.messages import summed
from labkit.checks import Args, Draw, Ranks, Submission, check, expect, reduce_op, transposed, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.hierarchical_allreduce.scenarios import groups, reduced
from labkit.hardware import Link, topology
from labkit.trace import bytes_between_nodes, mixed_collectives

SLACK = 1.02
"""Allowance for bytes between nodes, with `FEW` more: for sizes and the like."""
FEW = 256
OVERLAPPED = 0.93
"""Share of the time of the three steps one after the other; the solution needs 0.80, loops that start all of step 1
before anything else 0.87.
"""
EASIER = ("values", "uneven")
FORBIDDEN = {
    "torch.distributed.all_reduce_coalesced",
    "torch.distributed.nn.functional.all_reduce",
    "torch.nn.parallel.DistributedDataParallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""

Nodes = list[list[int]]


# What runs on the ranks -----------------------------------------------------------------------------------------------


def misused(case: str, tensor: Any, ranks_per_node: Any, mark: Any, **options: Any) -> str:
    """On a rank: return the error for a wrong argument; `mark` is called before it is given."""
    from labkit.exercises import hierarchical_allreduce

    if case == "ranks_per_node":
        mark()
    try:
        intra, inter = hierarchical_allreduce.build_node_groups(ranks_per_node)
        if case != "ranks_per_node":
            mark()
            across = None if case == "inter_node_group" else inter
            hierarchical_allreduce.hierarchical_all_reduce(tensor, intra, across, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# Nodes and sums -------------------------------------------------------------------------------------------------------


def consecutive(sizes: Sequence[int]) -> Nodes:
    """Return the ranks of nodes of these sizes."""
    return [list(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]


def placed(draw: Draw, sizes: Sequence[int], world_size: int) -> Nodes:
    """Draw which ranks are on nodes of these sizes: not one node after the other."""
    while True:
        order = draw.sample(range(world_size), sum(sizes))
        nodes = [sorted(order[node[0] : node[-1] + 1]) for node in consecutive(sizes)]
        if any(node[-1] - node[0] >= len(node) for node in nodes):
            return nodes


def run_on(
    submission: Submission,
    ranks: Ranks,
    inputs: list[Tensor],
    ranks_per_node: Any,
    nodes: Nodes,
    hardware: dict[str, Any] | None = None,
    wanted: Tensor | None = None,
    **options: Any,
) -> Run:
    """Run `reduced`; expect the sum over the ranks of `nodes`, or `wanted`, on each of them, in the tensor given."""
    run = ranks(len(inputs), **(hardware or {})).call(
        submission.used_by(reduced), [Args(tensor, ranks_per_node, **options) for tensor in inputs]
    )
    members = sorted(rank for node in nodes for rank in node)
    total = summed([inputs[rank] for rank in members]) if wanted is None else wanted
    seen = [value and value[1] for value in run.values]
    what = f"results on nodes {nodes}"[:150]
    expect(seen, what, easier=EASIER).close_to([total if rank in members else None for rank in range(len(inputs))])
    return run


# Groups ---------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=2,
    title="groups of equal nodes, unequal nodes, and ranks in any placement",
    look_at="build_node_groups: which ranks own shard k; ranks on no node",
)
def node_groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    equal = draw.choice([(2, 3), (3, 2), (4, 2)])
    sizes = draw.choice([(5, 2), (2, 4, 3), (3, 2, 5)])
    world_size = draw.randrange(7, 9)
    anywhere = placed(draw, draw.choice([(3, 3), (4, 2), (2, 2, 2)]), world_size)
    cases: list[tuple[int, Any, Nodes]] = [
        (equal[0] * equal[1], equal[1], consecutive([equal[1]] * equal[0])),
        (sum(sizes), list(sizes), consecutive(sizes)),
        (world_size, anywhere, anywhere),
    ]
    for size, given, nodes in cases:
        run = ranks(size).call(submission.used_by(groups), [Args(given)] * size)
        shards = min(map(len, nodes))
        across = [sorted(node[k * len(node) // shards] for node in nodes) for k in range(shards)]
        for rank in range(size):
            wanted = [next((group for group in of if rank in group), None) for of in (nodes, across)]
            seen = [members and sorted(members) for members in run.values[rank]]
            expect(seen, f"ranks_per_node={given}: rank {rank}'s groups").equals(wanted)
        made = set(map(tuple, map(sorted, run.trace.groups.values())))
        missing = [group for group in (*nodes, *across) if tuple(group) not in made and len(group) < size]
        expect(missing, "groups that were not created").equals([])


# Values ---------------------------------------------------------------------------------------------------------------


@check(points=2, todo=3, title="every rank ends with the sum", look_at="which shard crosses, and who shares it")
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for nnodes, per_node in (draw.choice([(2, 2), (3, 2)]), draw.choice([(2, 3), (2, 4), (4, 2)]), (1, 3), (3, 1)):
        chunks = draw.randrange(1, 5)
        numel = draw.randrange(2, 20) * per_node * chunks
        inputs = draw.tensors(nnodes * per_node, draw.choice([(numel,), (2, numel)]))
        nodes = consecutive([per_node] * nnodes)
        run_on(submission, ranks, inputs, per_node, nodes, chunks=chunks)


@check(points=1, todo=3, title="sizes that do not divide, one element, none", look_at="the last chunk is shorter")
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for numel in (draw.choice([31, 37, 41]), draw.randrange(4, 10), 1, 0):
        per_node = draw.choice([2, 3])
        inputs = draw.tensors(2 * per_node, numel)
        run_on(submission, ranks, inputs, per_node, consecutive([per_node] * 2), chunks=draw.randrange(2, 5))


@check(
    points=2,
    todo=3,
    title="nodes of unequal size",
    look_at="a rank whose `node.shard` is None: it has no shard, and it needs the sum",
)
def unequal_nodes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for sizes in (draw.choice([(3, 1), (4, 1)]), draw.choice([(2, 4), (4, 2, 2), (3, 2)])):
        inputs = draw.tensors(sum(sizes), draw.randrange(20, 60))
        run_on(submission, ranks, inputs, list(sizes), consecutive(sizes), chunks=draw.randrange(1, 4))


@check(
    points=1,
    todo=3,
    title="ranks placed round-robin or anywhere, and ranks on no node",
    look_at="nothing may assume that a node's ranks are consecutive",
)
def placements(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for nodes, size in (([[0, 2, 4], [1, 3, 5]], 6), (placed(draw, draw.choice([(3, 3), (2, 2)]), 7), 7)):
        inputs = draw.tensors(size, draw.randrange(20, 60))
        run = run_on(submission, ranks, inputs, nodes, nodes, chunks=2)
        mixed = sorted({event.operation for event in mixed_collectives(run.trace, nodes)})
        expect(mixed, "collectives of several nodes and several ranks of one").equals([])


@check(points=1, todo=3, title="every dtype keeps its precision", look_at="work inside the tensor that is given")
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for dtype in (torch.int64, torch.float64, draw.choice([torch.bfloat16, torch.float16, torch.int32])):
        inputs = draw.tensors(4, 24, dtype)
        if dtype in (torch.int64, torch.float64):
            # odd numbers that need more bits than a float32 has
            inputs = [tensor * 2**31 + 1 for tensor in inputs]
        run_on(submission, ranks, inputs, 2, [[0, 1], [2, 3]], chunks=2)


@check(
    points=2,
    todo=3,
    title="AVG, MAX, MIN and PRODUCT, on unequal nodes too",
    look_at="AVG: an average of the nodes' averages is wrong when nodes differ",
)
def operations(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for name in ("AVG", "MAX", "MIN", "PRODUCT"):
        sizes = draw.choice([(3, 1), (1, 3), (3, 2)] if name == "AVG" else [(2, 2), (3, 1)])
        inputs = draw.tensors(sum(sizes), 24)
        stacked = torch.stack(inputs)
        wanted = {"AVG": stacked.mean(0), "MAX": stacked.amax(0), "MIN": stacked.amin(0), "PRODUCT": stacked.prod(0)}
        nodes = consecutive(sizes)
        run_on(submission, ranks, inputs, list(sizes), nodes, wanted=wanted[name], op=reduce_op(name), chunks=2)


@check(
    points=1,
    todo=3,
    title="in place; bad arguments raise ValueError before any communication",
    look_at="the given lines at the beginning must stay; return `tensor`",
)
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    run = run_on(submission, ranks, draw.tensors(4, 24), 2, [[0, 1], [2, 3]])
    for rank in range(4):
        expect(run.values[rank][0], f"rank {rank} returns the tensor that was given").equals(True)
        # the judge reads it where the rank got it
        expect(run.ranks[rank].arguments[0], "the tensor that was given").equals(run.values[rank][1])
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("ranks_per_node", None, draw.choice([3, 0, [3, 2], [[0, 1], [1, 2]], [[0, 4], [1]]]), {}),
        ("chunks", torch.ones(8), 2, {"chunks": draw.choice([0, -1, 1.5])}),
        ("op", torch.ones(8), 2, {"op": reduce_op("BAND")}),
        ("tensor", draw.choice([transposed(torch.ones(2, 4)), [1.0, 2.0]]), 2, {}),
        ("inter_node_group", torch.ones(8), 2, {}),
    ]
    four = ranks(4)
    for case, tensor, given, options in cases:
        run = four.call(
            submission.used_by(misused),
            [Args(case, tensor, given, mark=work("mark", 0.001), **options) for _ in range(4)],
        )
        for rank in range(4):
            expect(run.values[rank], f"bad {case}: the error").contains("ValueError")
            expect(run.values[rank], f"bad {case}: the error names it").contains(case)
            calls = run.trace.of(rank)
            marked = next(event.end for event in calls if event.operation == "mark")
            late = [event.operation for event in calls if event.kind != "compute" and event.start >= marked]
            expect(late, f"bad {case}: communication after the bad argument").equals([])


@check(
    points=1,
    todo=3,
    title="real processes with gloo: unequal nodes, several chunks",
    look_at="what may be different with gloo: collectives of a group in different orders",
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    inputs = draw.tensors(5, draw.randrange(20_000, 30_000))
    sizes = draw.choice([(3, 2), (2, 3)])
    run = ranks.processes(5).call(
        submission.used_by(reduced), [Args(tensor, list(sizes), chunks=3) for tensor in inputs]
    )
    seen = [value and value[1] for value in run.values]
    expect(seen, "result", easier=EASIER).close_to([summed(inputs)] * 5)


# Traffic, time and rings ----------------------------------------------------------------------------------------------


def between_nodes(run: Run, nodes: Nodes, nbytes: int) -> None:
    """Expect 2(M-1)/M of `nbytes` from each node, in equal parts from as many ranks as the smallest node has."""
    mixed = sorted({event.operation for event in mixed_collectives(run.trace, nodes)})
    where = "which ranks are in the group that this collective is called with"
    expect(mixed, "collectives of several nodes and several ranks of one", look_at=where).equals([])
    sent = [sum(row) for row in bytes_between_nodes(run.trace, nodes)]
    ideal = 2 * (len(nodes) - 1) / len(nodes) * nbytes
    for number, node in enumerate(nodes):
        leaving = sum(sent[rank] for rank in node)
        what = f"bytes that leave node {number} of {len(nodes)}, for a tensor of {nbytes}"
        expect(leaving, what, unit="bytes").at_most(SLACK * ideal + FEW)
        expect(leaving, what, unit="bytes").at_least(ideal / SLACK - FEW)
        most = max(sent[rank] for rank in node)
        share = ideal / min(map(len, nodes))
        what = f"bytes that one rank of node {number} sends to other nodes"
        expect(most, what, unit="bytes", look_at="every owner of a shard sends its own").at_most(SLACK * share + FEW)


@check(
    points=4,
    todo=3,
    title="2(M-1)/M of the bytes leave each node, an equal part from each owner of a shard",
    look_at="what travels in step 2: this rank's shard, and nothing else",
)
def bytes_sent(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for sizes in (draw.choice([(4, 4), (3, 3, 3)]), draw.choice([(2, 4), (3, 2, 2)])):
        chunks = draw.randrange(1, 4)
        numel = draw.randrange(40, 80) * min(sizes) * chunks * 12
        nodes = consecutive(sizes)
        run = run_on(submission, ranks, draw.tensors(sum(sizes), numel), list(sizes), nodes, chunks=chunks)
        between_nodes(run, nodes, 4 * numel)


@check(
    points=2,
    todo=3,
    title="8 x 8 ranks: faster than the flat ring, with all network cards at work",
    look_at="the timeline: which cards are idle while others work",
)
def flat_ring(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    slow, fast = Link("slow", 0.1, 25e-6, "for small tensors"), Link("fast", 2.0, 3e-6, "for small tensors")
    numel = draw.randrange(500, 600) * 64
    inputs = draw.tensors(64, numel)
    hardware = {"nproc_per_node": 8, "nics_per_node": 8, "inter_node": slow, "intra_node": fast}
    nodes = consecutive([8] * 8)
    run = run_on(submission, ranks, inputs, 8, nodes, hardware, chunks=1)
    between_nodes(run, nodes, 4 * numel)
    ring = 2 * 63 * slow.seconds(4 * numel / 64)
    expect(run.trace.seconds, "seconds; a third of the flat ring's are", unit="seconds").at_most(ring / 3)


@check(
    points=2,
    todo=3,
    title="chunks follow each other: the network and the nodes' own links work at the same time",
    look_at="which step each chunk is in while another one crosses the network",
)
def overlap(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    slow, fast = Link("slow", 0.02, 1e-7, "for small tensors"), Link("fast", 0.12, 1e-7, "for small tensors")
    numel = draw.randrange(9_000, 11_000) * 16
    hardware = {"nproc_per_node": 2, "nics_per_node": 2, "inter_node": slow, "intra_node": fast}
    run = run_on(submission, ranks, draw.tensors(4, numel), 2, [[0, 1], [2, 3]], hardware, chunks=8)
    # reduce-scatter and all-gather of half a tensor each; the shard, half a tensor, twice half of it
    one_after_the_other = 2 * fast.seconds(2 * numel) + slow.seconds(2 * numel)
    expect(run.trace.seconds, "seconds", unit="seconds").at_most(OVERLAPPED * one_after_the_other)


def crossings(ring: list[int], places: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the (node, card) that the ring leaves and the one that it enters, for each border that it crosses."""
    pairs = list(zip(ring, ring[1:] + ring[:1], strict=True))
    return [(places[a], places[b]) for a, b in pairs if places[a][0] != places[b][0]]


def planned(submission: Submission, ranks: Ranks, places: list[tuple[int, int]], count: int) -> list[list[int]]:
    """Return the planned rings; expect `count`, each with all ranks."""
    rings = ranks(1).call(submission.plan_ring, [Args(places)]).values[0]
    number = len(rings) if isinstance(rings, list) else None
    expect(number, "rings, as many as the node with the most cards has").equals(count)
    for ring in rings:
        seen = sorted(ring) if isinstance(ring, list) and all(type(rank) is int for rank in ring) else ring
        expect(seen, "ranks in a ring").equals(list(range(len(places))))
    return list(rings)


def spread(draw: Draw, sizes: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Draw a placement of ranks on nodes with so many ranks on each card."""
    places = [(node, card) for node, cards in enumerate(sizes) for card, n in enumerate(cards) for _ in range(n)]
    return draw.sample(places, len(places))


@check(
    points=2,
    todo=4,
    title="plan_ring: all ranks once, and each node entered and left once, in any placement",
    look_at="a node's ranks follow each other",
)
def borders(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    round_robin = [(rank % 3, 0) for rank in range(9)]
    scattered = spread(draw, [[3], [draw.randrange(1, 4)], [2], [draw.randrange(1, 4)]])
    alone = [(5, 2)] * draw.randrange(1, 4)
    cluster = topology(nnodes=3, nproc_per_node=4, nics_per_node=1)
    consecutive_ranks = [cluster.nic_of(rank) for rank in range(12)]
    for places in (round_robin, scattered, alone, consecutive_ranks):
        nodes = {node for node, _ in places}
        for ring in planned(submission, ranks, places, 1):
            what = f"borders of {len(nodes)} nodes that a ring crosses"
            expect(len(crossings(ring, places)), what).equals(len(nodes) if len(nodes) > 1 else 0)


@check(
    points=2,
    todo=4,
    title="plan_ring: the rings enter and leave each node through all of its cards",
    look_at="ring r enters through card r mod C, and leaves through another",
)
def cards(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    few = draw.randrange(2, 4)
    unequal = spread(draw, [[few] * 3, [draw.randrange(1, 4) for _ in range(2)], [2]])
    equal = spread(draw, [[few] * 4] * 2)
    for places in (equal, unequal):
        number = {node: 1 + max(card for at, card in places if at == node) for node, _ in places}
        rings = planned(submission, ranks, places, max(number.values()))
        for r, ring in enumerate(rings):
            crossed = crossings(ring, places)
            expect(len(crossed), "node borders that a ring crosses").equals(len(number))
            for (home, out), (away, into) in crossed:
                expect(into, f"card of node {away} through which ring {r} enters").equals(r % number[away])
                entered = next(card for _, (node, card) in crossed if node == home)
                alone = number[home] == 1
                expect(alone or out != entered, "a ring leaves through another card than it entered").holds(
                    f"ring {r} enters and leaves node {home} through card {out}"
                )
        for node, count in number.items():
            left = {out for ring in rings for (home, out), _ in crossings(ring, places) if home == node}
            expect(sorted(left), f"cards through which the rings leave node {node}").equals(list(range(count)))
