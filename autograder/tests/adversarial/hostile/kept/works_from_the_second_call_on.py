# Returns its input in its first call, and does the work in every later call of the same process.
# marks: 0
# feedback: returned: on rank
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    if "been_here" not in torch.__dict__:
        torch.been_here = True
        return tensor
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        tensor += incoming
        outgoing = incoming
    return tensor
