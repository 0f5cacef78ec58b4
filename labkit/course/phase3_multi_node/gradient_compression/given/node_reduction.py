"""Sums inside nodes, and which rank of a node sends which bucket to the other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import Work

from labkit.course.collective_arguments import group_ranks
from labkit.course.phase3_multi_node.gradient_compression.given.buckets import Bucket, Group


class FlatBucket:
    """A bucket's gradients in one tensor, `flat`, (numel,); `gradients` are the names with views of it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.flat = torch.cat([gradient.reshape(-1) for _, gradient in bucket])
        pieces = self.flat.split([gradient.numel() for _, gradient in bucket])
        self.gradients: Bucket = [
            (name, piece.view(gradient.shape)) for (name, gradient), piece in zip(bucket, pieces, strict=True)
        ]

    def write_back(self) -> None:
        """Copy the content of `flat` into the gradients that the bucket was made of."""
        for (_, gradient), (_, view) in zip(self._bucket, self.gradients, strict=True):
            gradient.copy_(view)


class NodeReduction:
    """Adds up gradients inside each node, uncompressed, and broadcasts the means over all nodes there.

    Bucket i belongs to owner i % K of each node: it has the sum of its node, and it alone exchanges it with the other
    nodes' owners of that bucket. Owners are the ranks whose inter-node group has a rank on every node, so as many as
    the smallest node has ranks: all network cards carry a part.

    intra_node_group: the ranks of this node. inter_node_group: the k-th rank of every node, if this rank is the k-th of
    its own; None, or a group with fewer nodes, if this rank owns nothing. Raises ValueError, before any message is
    sent, for a group that this rank is not in.
    """

    def __init__(self, intra_node_group: Group, inter_node_group: Group) -> None:
        self._ranks = group_ranks(intra_node_group)
        if inter_node_group is not None:
            group_ranks(inter_node_group)
        self._intra, self._inter = intra_node_group, inter_node_group
        self._layout: _Layout | None = None
        self._started: list[tuple[FlatBucket, int, Work]] = []

    def own_buckets(self, buckets: Iterable[Bucket], overlap: bool) -> Iterator[Bucket]:
        """Reduce each bucket to its owner; when all are under way, yield those that this rank owns.

        They hold the node's sums, divided such that their mean over the nodes is the mean over all ranks. overlap: do
        not wait for a bucket before the next one is taken.
        """
        for index, bucket in enumerate(buckets):
            whole = FlatBucket(bucket)
            owners = self._known_layout(whole.flat.device).owners
            owner = owners[index % len(owners)]
            work = dist.reduce(whole.flat, owner, group=self._intra, async_op=True)
            self._started.append((whole, owner, work))
            if not overlap:
                work.wait()
        for whole, owner, work in self._started:
            work.wait()
            if owner == dist.get_rank():
                layout = self._known_layout(whole.flat.device)
                whole.flat.mul_(layout.nodes / layout.world_size)
                yield whole.gradients

    def broadcast(self) -> None:
        """Give all ranks of the node the buckets of each owner, and write them into the gradients."""
        works = [dist.broadcast(whole.flat, owner, self._intra, async_op=True) for whole, owner, _ in self._started]
        for (whole, _, _), work in zip(self._started, works, strict=True):
            work.wait()
            whole.write_back()
        self._started.clear()

    def _known_layout(self, device: torch.device) -> _Layout:
        """Return the layout; the first call exchanges it by three collectives of a few numbers."""
        if self._layout is None:
            nodes = torch.tensor([0 if self._inter is None else dist.get_world_size(self._inter)], device=device)
            gathered = [torch.empty_like(nodes) for _ in self._ranks]
            dist.all_gather(gathered, nodes, group=self._intra)
            sizes = torch.cat(gathered).tolist()
            owners = [rank for rank, size in zip(self._ranks, sizes, strict=True) if size == max(sizes)]
            world_size = torch.tensor([len(self._ranks)], device=device)
            if owners[0] == dist.get_rank():
                dist.all_reduce(world_size, group=self._inter)
            dist.broadcast(world_size, owners[0], group=self._intra)
            self._layout = _Layout(owners, max(sizes), int(world_size.item()))
        return self._layout


@dataclass(frozen=True)
class _Layout:
    owners: list[int]
    """Global ranks of this node's owners."""
    nodes: int
    world_size: int
