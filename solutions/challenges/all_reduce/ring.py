"""One ring through all ranks, as in exercise ring_allreduce."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor, cluster: dict[str, Any]) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = tensor.view(-1).tensor_split(size)
    buffer = torch.empty_like(shards[0])
    for step in range(2 * (size - 1)):
        reducing = step < size - 1
        outgoing, own = shards[(rank - step) % size], shards[(rank - step - 1) % size]
        incoming = buffer[: own.numel()] if reducing else own
        messages = [dist.P2POp(dist.isend, outgoing, (rank + 1) % size)]
        messages.append(dist.P2POp(dist.irecv, incoming, (rank - 1) % size))
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        if reducing:
            own.add_(incoming)
    return tensor
