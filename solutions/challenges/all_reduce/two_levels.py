"""The library's collectives in two levels, as in exercise hierarchical_allreduce: nodes, then cards, in 4 chunks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor, cluster: dict[str, Any]) -> Tensor:
    nodes = cluster["nodes"]
    inside = [dist.new_group(ranks) for ranks in nodes]
    across = [dist.new_group(list(ranks)) for ranks in zip(*nodes, strict=True)]
    place = next(ranks.index(dist.get_rank()) for ranks in nodes if dist.get_rank() in ranks)
    node = next(number for number, ranks in enumerate(nodes) if dist.get_rank() in ranks)
    pieces = [list(chunk.chunk(len(nodes[0]))) for chunk in tensor.view(-1).chunk(4)]
    reduced, crossing, shared = [], [], []
    for slot in range(len(pieces) + 2):
        if slot < len(pieces):
            own = pieces[slot][place]
            reduced.append(dist.reduce_scatter(own, pieces[slot], group=inside[node], async_op=True))
        if 0 < slot <= len(pieces):
            reduced[slot - 1].wait()
            crossing.append(dist.all_reduce(pieces[slot - 1][place], group=across[place], async_op=True))
        if slot > 1:
            crossing[slot - 2].wait()
            own = pieces[slot - 2][place]
            shared.append(dist.all_gather(pieces[slot - 2], own, group=inside[node], async_op=True))
    for work in shared:
        work.wait()
    return tensor
