# Right, with warnings, prints, logging and a progress bar on stderr.
# marks: 6
# feedback: 6 of 6 points
import logging
import sys
import warnings

import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    warnings.warn("this is slow", stacklevel=2)
    logging.getLogger("mine").error("rank %d begins", rank)
    outgoing = tensor.clone()
    for step in range(size - 1):
        print(f"round {step} of {size - 1}", file=sys.stderr)
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        tensor += incoming
        outgoing = incoming
    return tensor
