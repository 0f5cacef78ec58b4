# All ranks receive first.
# marks: 0
# feedback: DeadlockError
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    incoming = torch.empty_like(tensor)
    dist.recv(incoming, (rank - 1) % size)
    dist.send(tensor, (rank + 1) % size)
    return incoming
