"""Messages between the ranks of a checkpointer: plain data, over a group that no other communication uses."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks
from labkit.torch_versions.agreed_groups import group_within
from labkit.torch_versions.dispatch import no_modes


def own_group(group: ProcessGroup | None, timeout_seconds: float) -> ProcessGroup:
    """Return a new group of the same ranks, on CPUs: a thread can communicate in it while training uses another."""
    return group_within(group, group_ranks(group), "gloo", timedelta(seconds=timeout_seconds))


def exchange(value: Any, group: ProcessGroup) -> list[Any]:
    """Return the values of all ranks of the group, in their order, on each of them. A value is data as in JSON."""
    text = json.dumps(value).encode()
    cpu = torch.device("cpu")  # programs may have another default
    with no_modes():
        own = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64, device=cpu) for _ in range(dist.get_world_size(group))]
        dist.all_gather(sizes, torch.tensor([len(text)], device=cpu), group=group)
        longest = max(int(size) for size in sizes)
        texts = [torch.empty(longest, dtype=torch.uint8, device=cpu) for _ in sizes]
        dist.all_gather(texts, torch.nn.functional.pad(own, (0, longest - len(own))), group=group)
        return [json.loads(padded[: int(size)].numpy().tobytes()) for padded, size in zip(texts, sizes, strict=True)]
