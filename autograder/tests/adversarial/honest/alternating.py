# Even ranks send first, odd ones receive first; a whole round takes two messages' time.
# marks: 6
# feedback: 6 of 6 points
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    outgoing = tensor.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        if rank % 2:
            dist.recv(incoming, left)
            dist.send(outgoing, right)
        else:
            dist.send(outgoing, right)
            dist.recv(incoming, left)
        tensor.copy_(tensor + incoming)
        outgoing = incoming
    return tensor
