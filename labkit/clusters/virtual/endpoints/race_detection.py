"""Race detection: raises when a program uses a tensor that an asynchronous operation still fills or sends.

A rank's table holds each operation that has not been waited for. While it is not empty, every operator of the rank is
checked against it. A tensor that a receive or a collective will fill must be neither read nor written; a tensor that a
send or a collective reads must not be written. Views, and operators that need only shapes, do not count as a use. Fake
tensors have no memory that could overlap, so no race is found with those. `print` and `tolist` read without an operator
and are watched separately; reads of `numpy()`'s array are not seen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.clusters.program import is_learners, line_of
from labkit.clusters.virtual.scheduler.requests import shown
from labkit.torch_versions.dispatch import schema_of

_PLAIN = (Tensor, torch.nn.Parameter)
_SHAPE_ONLY = ("_like", "aten::new_", "aten::is_same_size", "aten::sym_", "aten::empty")
_MAX_COMPARED = 1_000_000
_FORMATTING = (Tensor.__format__.__code__.co_filename,)
"""Files between a program and `Tensor.__repr__`: that of `Tensor.__format__`, for f-strings."""


class UsedBeforeWait(RuntimeError):
    """A tensor was used while an asynchronous operation was still filling or sending it."""


class RaceDetector:
    """Operations of one rank that have not been waited for."""

    __slots__ = ("_number", "pending")

    def __init__(self) -> None:
        self.pending: dict[int, tuple[Any, Any, Any]] = {}
        """Each request by number, with the tensors that it fills and reads. Usually empty: test that before `check`."""
        self._number = 0

    def post(self, request: Any, filled: Any, taken: Any) -> int:
        """Record that `request` is under way; `filled` and `taken` are lists of tensors, or lists of lists.

        Returns the number to pass to `done`.
        """
        self._number = number = self._number + 1
        self.pending[number] = (request, filled, taken)
        return number

    def done(self, number: int) -> None:
        """Record that the operation has been waited for. May be called twice."""
        self.pending.pop(number, None)

    def check(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check an operator that is about to run. Raises UsedBeforeWait."""
        written = _written(function)
        if written is None:
            return
        for name, tensor in _tensors(args, kwargs):
            for request, filled, taken in self.pending.values():
                writes = name in written
                if filled and any(_overlap(tensor, other) for other in _flat(filled)):
                    _refuse(request, tensor, "written" if writes else "read")
                if writes and any(_overlap(tensor, other) for other in _flat(taken)):
                    _refuse(request, tensor, "written")

    def check_read(self, tensor: Tensor) -> None:
        """Check a read of a tensor that no operator makes. Raises UsedBeforeWait."""
        for request, filled, _ in self.pending.values():
            if any(_overlap(tensor, other) for other in _flat(filled)):
                _refuse(request, tensor, "read")


@functools.cache
def watch_reads_without_operator(detector: Callable[[], RaceDetector | None]) -> None:
    """Have `repr(tensor)` and `tensor.tolist()` checked where a rank's own code calls them, or `print` does for it.

    detector: returns that of the running thread's rank; None on other threads.
    """
    for name in ("__repr__", "tolist"):
        _watch(name, getattr(Tensor, name), detector)


def _watch(name: str, original: Any, detector: Callable[[], RaceDetector | None]) -> None:
    @functools.wraps(original)
    def watched(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        races = detector()
        if races is not None and races.pending and tensor.__class__ in _PLAIN:
            frame = sys._getframe(1)
            while frame.f_code.co_filename in _FORMATTING and frame.f_back is not None:
                frame = frame.f_back
            if is_learners(frame.f_code.co_filename):  # the lab's own reports show what is there
                races.check_read(tensor)
        return original(tensor, *args, **kwargs)

    setattr(Tensor, name, watched)


def _refuse(request: Any, tensor: Tensor, how: str) -> None:
    line = line_of(sys._getframe(2)) or "an unknown line"
    why = "its data has not arrived" if how == "read" else "the old or the new data may be sent or kept"
    raise UsedBeforeWait(
        f"a {shown(tensor.dtype, tensor.numel())} is {how} at {line} while {request} of {request.line} is under way: "
        f"{why}; call wait() on what {request.name} returned first"
    )


@functools.cache
def _written(function: Any) -> frozenset[int | str] | None:
    """Positions and names of the arguments that an operator writes; None if it uses no data."""
    schema = schema_of(function)
    name = schema.name
    if name.startswith(("_c10d_functional::", "c10d::")) or any(part in name for part in _SHAPE_ONLY):
        return None
    aliases = [a.alias_info for a in schema.arguments]
    if not any(a is not None and a.is_write for a in aliases) and any(r.alias_info for r in schema.returns):
        return None  # a view
    writes = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return frozenset(part for pair in writes for part in pair)


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Tensor]]:
    named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for name, argument in named:
        if argument.__class__ in _PLAIN:
            yield name, argument
        elif argument.__class__ in (list, tuple):
            for item in argument:
                if item.__class__ in _PLAIN:
                    yield name, item


def _flat(tensors: Any) -> Iterator[Tensor]:
    for item in tensors:
        if isinstance(item, (list, tuple)):
            yield from _flat(item)
        else:
            yield item


def _overlap(tensor: Tensor, other: Tensor) -> bool:
    """Whether the tensors share an element. `other` is contiguous. False if unknown."""
    if other.__class__ not in _PLAIN or tensor.is_meta or other.is_meta or not tensor.numel():
        return False
    low = other.data_ptr()
    high = low + other.nbytes
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start < high and low < start + tensor.nbytes
    size = tensor.element_size()
    steps = [(n, stride * size) for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    end = start + sum((n - 1) * step for n, step in steps) + size
    if end <= low or high <= start:
        return False
    if tensor.numel() > _MAX_COMPARED:
        return False
    places = np.array([start])
    for n, step in steps:
        places = np.add.outer(places, np.arange(n) * step).ravel()
    return bool(((places + size > low) & (places < high)).any())
