"""Arguments of `Job.call` that are not plain data: marked dicts here, the real object on the rank.

A job's arguments travel between processes as tensors and plain data. A process group, a reduction and a strided tensor
exist only on a rank, so a check writes them as `group_of([0, 2, 3])`, `reduce_op("MAX")` and `transposed(tensor)`,
and a function that takes a known time as `work("forward", 0.01)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

_GROUP, _REDUCE_OP, _TRANSPOSED, _WORK = "labkit:group", "labkit:reduce_op", "labkit:transposed", "labkit:work"

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""One rank's call: positional and keyword arguments."""


def group_of(ranks: Iterable[int]) -> dict[str, Any]:
    """A placeholder for the process group of these global ranks, which must be listed in `Job.groups`."""
    return {_GROUP: tuple(ranks)}


def reduce_op(name: str) -> dict[str, Any]:
    """A placeholder for `torch.distributed.ReduceOp.NAME`: `SUM`, `AVG`, `MAX`, `MIN`, `PRODUCT`, `BAND`, ..."""
    return {_REDUCE_OP: name}


def transposed(tensor: Tensor) -> dict[str, Any]:
    """A placeholder for `tensor.t()`, which is not contiguous: 2-D, at least 2 x 2."""
    return {_TRANSPOSED: tensor}


def work(name: str, seconds: float) -> dict[str, Any]:
    """A placeholder for a function without arguments that takes `seconds` of the rank's virtual time.

    Each call is an event of that name in the trace. The time is charged by whoever runs the job, not by the rank.
    """
    return {_WORK: (name, float(seconds))}


def works_of(arguments: Arguments | None) -> list[tuple[str, float]]:
    """Names and seconds of the `work` in a rank's arguments."""
    values = () if arguments is None else (*arguments[0], *arguments[1].values())
    return [value[_WORK] for value in values if type(value) is dict and _WORK in value]


def charge_with(charge: Callable[[str, float], None]) -> None:
    """Make `charge(name, seconds)` do all later work in this process; the default sleeps."""
    global _charge
    _charge = charge


def _sleep(name: str, seconds: float) -> None:
    time.sleep(seconds)


_charge: Callable[[str, float], None] = _sleep


def marked_group(value: Any) -> tuple[int, ...] | None:
    """The ranks passed to `group_of`, or None if `value` is anything else."""
    return tuple(value[_GROUP]) if type(value) is dict and _GROUP in value else None


def as_given(value: Any) -> Any:
    """The value of a placeholder where there are no ranks: a strided tensor. Returns anything else unchanged."""
    return value[_TRANSPOSED].t() if type(value) is dict and _TRANSPOSED in value else value


def on_rank(value: Any, groups: Mapping[tuple[int, ...], Any]) -> Any:
    """The value of a placeholder on this rank; anything else is unchanged. `groups`: the job's, by their ranks."""
    if type(value) is not dict or len(value) != 1:
        return value
    ((kind, body),) = value.items()
    if kind == _GROUP:
        return groups[tuple(body)]
    if kind == _REDUCE_OP:
        return getattr(dist.ReduceOp, body)
    if kind == _TRANSPOSED:
        return body.t()
    if kind == _WORK:
        return partial(_charge, *body)
    return value
