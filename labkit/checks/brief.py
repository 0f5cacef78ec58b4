"""One-line summaries of learners' values that are safe to show in feedback on hidden checks.

Code could encode its inputs in what it returns: a string that contains them, a shape of sixty dimensions, a number
of a thousand digits, an object whose repr spells them out. So learners see the kind of value; numbers only up to a
readable size; and strings only if they are names that torch or Python define.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_MOST_ITEMS = 8
_MOST_DIMENSIONS = 4
_MOST_DIGITS = 12
_NESTED = 2


def brief(value: Any, nested: int = 0) -> str:
    """`float32 of shape (3, 4)`, `[2, 2, 2]`, `None`, `a string`; at most about 200 characters."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if value is None or type(value) is bool:
        return str(value)
    if type(value) is int:
        return str(value) if abs(value) < 10**_MOST_DIGITS else f"a number with more than {_MOST_DIGITS} digits"
    if type(value) is float:
        return f"{value:.6g}"
    if type(value) is str:
        return repr(value) if _is_known(value) else "a string" if value else "an empty string"
    if isinstance(value, (list, tuple, set, frozenset)):
        return _items(value, nested)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, dict):
        return f"a dict of length {len(value)}"
    return "an object that is neither a plain tensor nor a number"


def _tensor(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dim() > _MOST_DIMENSIONS or any(size >= 10**_MOST_DIGITS for size in tensor.shape):
        return f"{dtype} of {tensor.dim()} dimensions"
    return f"{dtype} of shape {tuple(tensor.shape)}"


def _items(values: Sequence[Any] | set[Any] | frozenset[Any], nested: int) -> str:
    if nested == _NESTED:
        return f"{len(values)} values"
    if isinstance(values, (set, frozenset)):
        plain = all(type(value) is int for value in values)
        first: Iterable[Any] = sorted(values) if plain else list(values)
        text = _joined(list(first), nested)
        return f"{{{text}}}" if nested else text or "nothing"
    return f"[{_joined(values, nested)}]"


def _joined(values: Sequence[Any], nested: int) -> str:
    shown = [brief(value, nested + 1) for value in values[:_MOST_ITEMS]]
    text = ", ".join([*shown, "..."] if len(values) > _MOST_ITEMS else shown)
    return text if len(text) <= 200 or nested else f"{len(values)} values"


def _is_known(text: str) -> bool:
    """Whether it is a name that Python or torch.distributed defines, such as an exception or a collective."""
    return text.isidentifier() and (hasattr(builtins, text) or hasattr(torch.distributed, text))
