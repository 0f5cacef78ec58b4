"""Each part of the tensor is summed at an owner, along a tree of ranks, nodes and racks, and returns the same way.

A unit (a node; a rank if there is one node) that owns a share f of n bytes sends and receives (1 + (P-2) f) n of P
units' traffic. So the shares are chosen such that all links end at once: 1 + (P-2) f is proportional to a unit's rate,
and a unit that is too slow even for (1 + 0) n owns nothing. The parts are cut into chunks that follow each other.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

CHUNKS = 16
UP, DOWN = 0, 1


class Tree(NamedTuple):
    """The tree of one owner, as this rank sees it."""

    parent: int | None
    children: list[int]
    height: int
    """Messages on the longest way to this rank from below."""
    depth: int
    """Messages on the way from the owner to this rank."""


def all_reduce(tensor: Tensor, cluster: dict[str, Any]) -> Tensor:
    parts = weights(cluster)
    trees = [tree(cluster, owner) for owner, _ in parts]
    pieces = cut(tensor.view(-1), [weight for _, weight in parts])
    work = Work(trees, pieces)
    top = 4  # a tree is at most three messages high: ranks, nodes, racks
    # In slot s a rank works on chunk s where it is a leaf, and on an earlier one where it has to wait for others: so
    # nothing that it waits for holds up what it could send at once.
    for slot in range(CHUNKS + 2 * top):
        for stage in range(2 * top):
            chunk = slot - stage
            for number, own in enumerate(trees):
                if 0 <= chunk < CHUNKS and stage == own.height:
                    work.up(number, chunk)
                if 0 <= chunk < CHUNKS and stage == top + own.depth and own.parent is not None:
                    work.down(number, chunk)
    work.finish()
    return tensor


class Work:
    """The messages of this rank."""

    def __init__(self, trees: list[Tree], pieces: list[list[Tensor]]) -> None:
        self.trees, self.pieces = trees, pieces
        self.sends: list[Any] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.from_below: dict[tuple[int, int, int], tuple[Tensor, Any]] = {}
        self.from_above: dict[tuple[int, int], tuple[Tensor, Any]] = {}
        for chunk in range(CHUNKS):  # all receives are posted at once, so that no sender waits
            for number, own in enumerate(trees):
                for child in own.children:
                    self.from_below[number, chunk, child] = self.receive(number, chunk, child, UP)
                if own.parent is not None:
                    self.from_above[number, chunk] = self.receive(number, chunk, own.parent, DOWN)

    def receive(self, number: int, chunk: int, peer: int, way: int) -> tuple[Tensor, Any]:
        buffer = torch.empty_like(self.pieces[number][chunk])
        return buffer, dist.irecv(buffer, peer, tag=2 * number + way)

    def send(self, number: int, piece: Tensor, peer: int, way: int) -> None:
        self.sends.append(dist.isend(piece, peer, tag=2 * number + way))

    def up(self, number: int, chunk: int) -> None:
        """Add what the children send, and send the sum to the parent; the owner sends it back to its children."""
        own, piece = self.trees[number], self.pieces[number][chunk]
        for child in own.children:
            buffer, work = self.from_below.pop((number, chunk, child))
            work.wait()
            piece.add_(buffer)
        if own.parent is not None:
            self.send(number, piece, own.parent, UP)
        else:
            for child in own.children:
                self.send(number, piece, child, DOWN)

    def down(self, number: int, chunk: int) -> None:
        """Pass the total from the parent on to the children."""
        total, work = self.from_above.pop((number, chunk))
        work.wait()
        for child in self.trees[number].children:
            self.send(number, total, child, DOWN)
        self.copies.append((self.pieces[number][chunk], total))

    def finish(self) -> None:
        for work in self.sends:
            work.wait()
        for piece, total in self.copies:
            piece.copy_(total)


def cut(flat: Tensor, shares: list[float]) -> list[list[Tensor]]:
    """Cut a tensor into parts of these shares, and each part into chunks."""
    total, edges = sum(shares), [0]
    for count in range(1, len(shares) + 1):
        edges.append(round(flat.numel() * sum(shares[:count]) / total))
    return [list(flat[a:b].tensor_split(CHUNKS)) for a, b in itertools.pairwise(edges)]


def weights(cluster: dict[str, Any]) -> list[tuple[int, float]]:
    """Return the owners and their shares: (rank, share), each share above 0."""
    nodes = cluster["nodes"]
    units = nodes if len(nodes) > 1 else [[rank] for rank in nodes[0]]
    rates = cluster["card_gb_per_s"] if len(nodes) > 1 else cluster["port_gb_per_s"]
    shares = proportional(rates)
    return [
        (rank, share / len(unit)) for unit, share in zip(units, shares, strict=True) if share > 1e-9 for rank in unit
    ]


def proportional(rates: list[float]) -> list[float]:
    """Return the share of each unit, such that the busiest link is busy as briefly as possible."""
    count = len(rates)
    if count < 3:
        return [1 / count] * count
    # seconds per byte of the tensor: what all links need together, and what the slowest one needs for its own
    time = max(2 * (count - 1) / sum(rates), 1 / min(rates))
    room = [max(0.0, time * rate - 1) for rate in rates]
    return [one / sum(room) for one in room]


def tree(cluster: dict[str, Any], owner: int) -> Tree:
    """Return this rank's place in the tree that sums at `owner`: ranks, then nodes, then racks."""
    nodes: list[list[int]] = cluster["nodes"]
    racks: list[list[int]] = cluster["racks"]
    node_of = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
    rack_of = {node: number for number, members in enumerate(racks) for node in members}
    place = nodes[node_of[owner]].index(owner)
    heads = [max(members, key=lambda node: cluster["card_gb_per_s"][node]) for members in racks]
    heads[rack_of[node_of[owner]]] = node_of[owner]

    def parent(rank: int) -> int | None:
        if rank == owner:
            return None
        node = node_of[rank]
        if rank != nodes[node][place]:
            return nodes[node][place]
        head = heads[rack_of[node]]
        return owner if node == head else nodes[head][place]

    def children(rank: int) -> list[int]:
        return [other for other in node_of if parent(other) == rank]

    def height(rank: int) -> int:
        return max((1 + height(child) for child in children(rank)), default=0)

    def depth(rank: int) -> int:
        above = parent(rank)
        return 0 if above is None else 1 + depth(above)

    me = dist.get_rank()
    return Tree(parent(me), children(me), height(me), depth(me))
