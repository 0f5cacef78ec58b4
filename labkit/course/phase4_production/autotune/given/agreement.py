"""Numbers that all ranks must share to take the same decision."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from labkit.torch_versions.dispatch import no_modes


def highest(value: float, group: ProcessGroup | None = None) -> float:
    """Return the highest `value` of the group's ranks, on each of them: one all-reduce of 8 bytes.

    Without a process group it is the value itself. On fake ranks numbers are exchanged as well.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return value
    device = "cuda" if dist.get_backend(group) == "nccl" and torch.cuda.is_available() else "cpu"
    with no_modes():
        of_all = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(of_all, op=dist.ReduceOp.MAX, group=group)
        return float(of_all)
