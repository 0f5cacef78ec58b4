# Correct but slow: rank 0 sends, and each other rank only when it has received.
# marks: 5
# feedback: all links are busy at once
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    outgoing = tensor.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        if rank == 0:
            dist.send(outgoing, right)
            dist.recv(incoming, left)
        else:
            dist.recv(incoming, left)
            dist.send(outgoing, right)
        tensor += incoming
        outgoing = incoming
    return tensor
