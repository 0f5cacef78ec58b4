# Each rank takes less than the limit for all; together they take twice as much.
# marks: 0
# feedback: memory | timeout
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    held = bytearray(400 << 20)
    for start in range(0, len(held), 4096):
        held[start] = 1
    dist.barrier()
    return tensor
