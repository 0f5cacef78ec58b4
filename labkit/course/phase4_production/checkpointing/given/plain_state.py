"""A state as JSON: nested containers stay what they are, and tensors become references by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class TensorEntry(NamedTuple):
    """A tensor of the state: where it is in the checkpoint's files, as flat elements, is in the manifest."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def encode(value: Any, path: str, reference: Callable[[Any, str], Any]) -> Any:
    """Return the value as JSON. reference: returns the JSON of a leaf that is no plain data, by its path, or raises."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        items = [[encode(k, path, reference), encode(v, f"{path}/{k}", reference)] for k, v in value.items()]
        return {"dict": items}
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{path}/{number}", reference) for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, np.generic):
        return value.item()
    return reference(value, path)


def tensor_reference(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Return the JSON of a tensor."""
    return {"tensor": key, "shape": [*shape], "dtype": str(dtype).removeprefix("torch.")}


def decode(data: Any, tensor: Callable[[TensorEntry], Any]) -> Any:
    """Return the value that was passed to `encode`. tensor: returns the object to put in the place of a tensor."""
    if isinstance(data, list):
        return [decode(item, tensor) for item in data]
    if not isinstance(data, dict):
        return data
    if "tensor" in data:
        return tensor(TensorEntry(data["tensor"], tuple(data["shape"]), getattr(torch, data["dtype"])))
    ((kind, body),) = data.items()
    if kind == "dict":
        return {decode(key, tensor): decode(value, tensor) for key, value in body}
    return bytes.fromhex(body) if kind == "bytes" else tuple(decode(item, tensor) for item in body)


def only_tensors(value: Any, path: str) -> Tensor:
    """Return a leaf that is a dense tensor, detached. Raises ValueError, with its path, for any other leaf."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise ValueError(
            f"components must have plain data and dense tensors in their state, got {type(value).__name__} at {path}"
        )
    return value.detach()
