"""Parts of a fingerprint: bits of tensors, and a model's tensors by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def words(tensor: Tensor) -> Tensor:
    """Return the bits of each element as an int64: 1-D, in the tensor's order, on its device. -0.0 is not 0.0.

    An element of 16 bytes becomes two.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()]).to(torch.int64)


def named_tensors(model: nn.Module) -> dict[str, Tensor | None]:
    """Return the parameters, `0.weight`, and their gradients, `0.weight.grad`: None where there is none.

    Buffers are not among them: ranks may keep their own.
    """
    tensors: dict[str, Tensor | None] = {}
    for name, parameter in model.named_parameters():
        tensors[name], tensors[f"{name}.grad"] = parameter, parameter.grad
    return tensors
