# Returns a gigabyte of zeros, as large as the limit on its memory lets it.
# marks: 0
# feedback: an object that is neither a plain tensor nor a number | an exception | MemoryError at | memory: | timeout
import torch

__all__ = ["pass_around"]


def pass_around(tensor):
    return [torch.zeros(1).expand(1 << 28), torch.zeros(60 << 20, dtype=torch.uint8)]
