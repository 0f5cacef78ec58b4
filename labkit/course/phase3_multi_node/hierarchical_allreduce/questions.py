"""Questions of hierarchical_allreduce. Bytes, times and rings are those of the notebook's runs, or of a formula."""

from __future__ import annotations

from typing import Any

from labkit.questions import Number
from labkit.trace import bytes_between_nodes

NODES = [list(range(8 * node, 8 * node + 8)) for node in range(8)]
"""Nodes of the runs on 8 x 8 ranks."""


def sending_cards(flat: Any) -> float:
    """Return how many ranks send anything to another node, in part 1's run."""
    return float(sum(any(row) for row in bytes_between_nodes(flat, NODES)))


def with_eight_cards(times: Any) -> float:
    """Return the milliseconds of the learner's all-reduce with 8 cards on 10 Gb/s, in part 6's runs."""
    return float(times["yours", 8][0])


QUESTIONS = [
    Number(
        name="busy_cards",
        text="**Before you go on**: each of the eight nodes has eight network cards. How many of the 64 cards send "
        "anything while the ring runs?",
        answer=sending_cards,
        solution="8",
        near={
            "64": "a rank whose right neighbour is in the same node sends nothing through its card.",
            "1": "that is for each node.",
            "16": "a node's first rank receives through its card; it sends inside the node.",
        },
        otherwise="Which rank of a node has its right neighbour in another node?",
        why="Only the last rank of each node has its right neighbour in another one: {answer:.0f} cards send, the "
        "other 56 wait.",
    ),
    Number(
        name="level_bytes",
        text="**Predict**: in two levels on eight nodes, how many MB does each of the 64 cards send for the tensor of "
        "26.35 MB?",
        answer=lambda counts, NBYTES: 2 * (counts[2] - 1) / counts[2] * NBYTES / 8 / 1e6,
        solution="2 * 7 / 8 * 26.35 / 8",
        unit="MB",
        tolerance=0.05,
        near={
            "2 * 7 / 8 * 26.35": "that is what a node sends; its eight ranks share it.",
            "2 * 63 / 64 * 26.35": "that is the one busy card of the flat ring.",
            "26.35 / 8": "that is the shard itself. An all-reduce of eight owners sends it 2 · 7/8 times.",
            "26.35 / 64": "an owner's shard is an eighth of the tensor: nodes do not divide it further.",
        },
        otherwise="How large is a rank's shard, and how often is it sent in an all-reduce of eight ranks?",
        why="A shard is an eighth of 26.35 MB, and its eight owners, one on each node, send it 2 · 7/8 times: "
        "{answer:.2f} MB through each card.",
        shown_by="the picture below",
    ),
    Number(
        name="eight_cards",
        text="**Predict**: the flat ring takes 45 ms on 10 Gb/s Ethernet. How many ms does yours take, if all eight "
        "cards of each node are that fast?",
        answer=with_eight_cards,
        solution="2 * 7 / 8 * 26.35 / 8 / 1.25 + 2",
        unit="ms",
        tolerance=0.35,
        near={
            "45": "that would be with one card at work.",
        },
        otherwise="How many MB go through a card, at 1.25 GB/s? Add about 2 ms for latencies and for the steps inside.",
        why="Each card carries 5.76 MB, which takes 4.6 ms at 1.25 GB/s. With latencies, the protocol's share and the "
        "steps inside the nodes the run took {answer:.1f} ms.",
        shown_by="the picture below",
    ),
    Number(
        name="node_bytes",
        text="**a** 100 MB are all-reduced in two levels by 4 nodes with 16 ranks each. How many MB leave each node?",
        answer=lambda: 2 * 3 / 4 * 100,
        solution="2 * 3 / 4 * 100",
        unit="MB",
        near={
            "2 * 63 / 64 * 100": "that is the flat ring. Inside a node the parts are added up before anything leaves.",
            "2 * 3 / 4 * 100 / 16": "that is through one of 16 cards.",
            "2 * 15 / 16 * 100": "N is the number of ranks that a shard meets on its way: one on each node.",
            "16 * 100": "ranks of a node add up their parts before anything leaves it.",
        },
        otherwise="Think of the four nodes as four ranks.",
        why="Nodes behave like the ranks of a ring: 2 · 3/4 of the tensor, whatever the number of ranks in a node.",
    ),
    Number(
        name="unequal_cards",
        text="**b** Three nodes have 8, 8 and 2 ranks. How many ranks own a shard, all nodes together?",
        answer=lambda: 6,
        solution="3 * 2",
        near={
            "18": "a shard needs an owner on every node, and one node has only two ranks.",
            "2": "that is for each node.",
            "16": "the large nodes cannot have more shards than the small one.",
        },
        otherwise="Each shard has one owner on every node.",
        why="As many shards as the smallest node has ranks, with an owner on each of three nodes: {answer:.0f}. The "
        "other twelve ranks take part inside their nodes only.",
    ),
    Number(
        name="ring_borders",
        text="**c** 64 ranks are placed round-robin on eight nodes, rank r on node r mod 8. How many messages of a "
        "round cross between nodes when the ring follows the ranks' numbers, minus those of a planned ring?",
        answer=lambda: 64 - 8,
        solution="64 - 8",
        near={
            "64": "a planned ring crosses, too: once for each node.",
            "8": "that is the planned ring.",
            "63": "it is a ring: rank 63 sends to rank 0, on another node.",
        },
        otherwise="Rank r + 1 is never on the node of rank r.",
        why="All 64 messages cross, against one for each of the eight nodes.",
    ),
]
