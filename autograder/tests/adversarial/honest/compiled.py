# Adds in a function that torch.compile has compiled.
# marks: 6
# feedback: 6 of 6 points
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


@torch.compile
def add(tensor, incoming):
    return tensor.add_(incoming)


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    copied = torch.compile(torch.nn.Identity(), backend="eager", fullgraph=True)
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        add(tensor, copied(incoming))
        outgoing = incoming
    return tensor
