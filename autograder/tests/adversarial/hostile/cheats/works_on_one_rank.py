# All send their tensors to rank 0, which does the work and reports every rank's result.
# marks: 0
# feedback: None (
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(tensor, 0)
        return None
    for other in range(1, size):
        incoming = torch.empty_like(tensor)
        dist.recv(incoming, other)
        tensor += incoming
    return tensor
