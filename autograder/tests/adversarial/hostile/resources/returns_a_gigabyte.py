# Returns a gigabyte of zeros, as much as its memory limit allows.
# marks: 0
# feedback: an object that is neither a plain tensor nor a number | an exception | MemoryError at | memory: | timeout
import torch

__all__ = ["pass_around"]


def pass_around(tensor):
    return [torch.zeros(1).expand(1 << 28), torch.zeros(60 << 20, dtype=torch.uint8)]
