# Correct except for the direction.
# marks: 4
# feedback: neighbours
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank - 1) % size)
        dist.recv(incoming, (rank + 1) % size)
        sending.wait()
        tensor += incoming
        outgoing = incoming
    return tensor
