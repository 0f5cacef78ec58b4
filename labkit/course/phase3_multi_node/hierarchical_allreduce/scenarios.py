"""Programs on ranks of hierarchical_allreduce's checks: the groups of a rank, and an all-reduce."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


def groups(ranks_per_node: Any) -> list[list[int] | None]:
    """On a rank: return the members of its two groups; None for no group."""
    from labkit.exercises import hierarchical_allreduce

    made = hierarchical_allreduce.build_node_groups(ranks_per_node)
    return [None if group is None else dist.get_process_group_ranks(group) for group in made]


def reduced(tensor: Tensor, ranks_per_node: Any, **options: Any) -> Any:
    """On a rank: all-reduce; return whether the tensor came back, and what came back. None: the rank is on no node."""
    from labkit.exercises import hierarchical_allreduce

    intra, inter = hierarchical_allreduce.build_node_groups(ranks_per_node)
    if intra is None:
        return None
    result = hierarchical_allreduce.hierarchical_all_reduce(tensor, intra, inter, **options)
    return [result is tensor, result]
