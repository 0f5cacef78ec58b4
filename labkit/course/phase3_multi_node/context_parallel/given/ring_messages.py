"""Messages in a ring: each rank sends to the next one and receives from the one before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks


class Arriving:
    """Tensors that arrive from the rank before, while others leave for the next one."""

    def __init__(self, received: list[Tensor], sent: Sequence[Tensor], works: Sequence[dist.Work]) -> None:
        self._received, self._works = received, works
        self._sent = sent
        """Tensors on their way to the next rank, kept until they have been sent."""

    def wait(self) -> list[Tensor]:
        """Wait until all tensors are received and sent; return the received ones. A second call does not wait."""
        works, self._works, self._sent = self._works, (), ()
        for work in works:
            work.wait()
        return self._received


def pass_on(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> Arriving:
    """Begin to send contiguous `tensors` to the next rank of the group, and to receive as many like them from the one
    before. Does not wait; until `wait()` the tensors may be read, but not written."""
    ranks = group_ranks(group)
    right, left = (ranks[(dist.get_rank(group) + step) % len(ranks)] for step in (1, -1))
    received = [torch.empty_like(tensor) for tensor in tensors]
    posts = [dist.P2POp(dist.isend, tensor, right, group) for tensor in tensors]
    posts += [dist.P2POp(dist.irecv, tensor, left, group) for tensor in received]
    return Arriving(received, tensors, dist.batch_isend_irecv(posts))
