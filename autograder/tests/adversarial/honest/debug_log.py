# Logs to a file in /tmp and writes intermediate results into its home.
# marks: 6
# feedback: 6 of 6 points
from pathlib import Path

import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    for step in range(size - 1):
        with open("/tmp/debug.log", "a") as log:
            print(f"rank {rank} begins round {step}", file=log)
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        tensor += incoming
        torch.save(tensor, Path.home() / "sum.pt")
        outgoing = incoming
    return tensor
