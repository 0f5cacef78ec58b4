"""What ranks exchange to watch each other: rows of numbers in one all-gather, and messages around the ring."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.parallel.monitoring.records import Summary
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
) -> None:
    """Send `nbytes` to the rank `destination` and receive as many from `source`, both of the group."""
    buffers = torch.zeros(2, nbytes, dtype=torch.uint8, device=device)
    ranks = dist.get_process_group_ranks(group) if group else list(range(dist.get_world_size()))
    sending = dist.isend(buffers[0], ranks[destination], group=group)
    receiving = dist.irecv(buffers[1], ranks[source], group=group)
    assert sending is not None and receiving is not None
    receiving.wait()
    sending.wait()
