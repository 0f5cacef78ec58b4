# Returns a data class with the fields and the name of a tensor.
# marks: 0
# feedback: an object that is neither
from dataclasses import dataclass

import torch

__all__ = ["pass_around"]


@dataclass
class Tensor:
    shape: tuple
    dtype: torch.dtype
    data: torch.Tensor
    value: float = 0.0
    fields: str = "fields"


def pass_around(tensor):
    return Tensor(tuple(tensor.shape), tensor.dtype, tensor)
