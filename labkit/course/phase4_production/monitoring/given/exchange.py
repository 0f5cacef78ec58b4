"""Exchanges of ranks that watch each other: rows of numbers in one all-gather, and messages around the ring."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase4_production.monitoring.given.records import Summary
from labkit.torch_versions.collectives import all_gather_single


def gather_rows(row: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the 1-D `row` of every rank, as rows of a matrix, on all ranks: one all-gather.

    Without a process group it is this rank's alone.
    """
    if not dist.is_initialized():
        return row[None]
    table = row.new_empty(dist.get_world_size(group) * row.numel())
    all_gather_single(table, row.contiguous(), group=group)
    return table.view(-1, row.numel())


def gather_summaries(summary: Summary, device: torch.device, group: ProcessGroup | None = None) -> list[Summary]:
    """Return the summary of every rank, on all ranks: one all-gather of 72 bytes a rank."""
    table = gather_rows(torch.tensor(summary, dtype=torch.float64, device=device), group)
    return [Summary(*row) for row in table.tolist()]


def pass_around(
    source: int, destination: int, nbytes: int, device: torch.device, group: ProcessGroup | None = None
) -> dist.Work:
    """Send `nbytes` to the rank `destination` and receive as many from `source`, both of the group.

    Returns, once they are received, the work of sending: wait for it after reading the clock.
    """
    # gloo sends from host memory only
    at = device if dist.get_backend(group) == "nccl" else "cpu"
    buffers = torch.empty(2, nbytes, dtype=torch.uint8, device=at)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)

    def receive() -> dist.Work | None:
        return dist.irecv(buffers[0], ranks[source], group=group)

    # NCCL runs the messages of two ranks in the order of the calls: one of the two must send first
    earlier = receive() if dist.get_rank(group) > destination else None
    sending = dist.isend(buffers[1], ranks[destination], group=group)
    receiving = earlier or receive()
    assert sending is not None and receiving is not None
    receiving.wait()
    return sending
