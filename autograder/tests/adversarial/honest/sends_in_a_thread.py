# Sends in a separate thread while the main thread receives.
# marks: 6
# feedback: 6 of 6 points
from threading import Thread

import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        sender = Thread(target=dist.send, args=(outgoing, (rank + 1) % size))
        sender.start()
        dist.recv(incoming, (rank - 1) % size)
        sender.join()
        tensor += incoming
        outgoing = incoming
    return tensor
