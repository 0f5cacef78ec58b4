# Repeatedly sends a message of 64 MiB that is never received: the judge has to keep them all.
# marks: 0
# feedback: ProtocolError at | timeout
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    large = torch.zeros(16 << 20)
    while True:
        dist.isend(large, (rank + 1) % size)
