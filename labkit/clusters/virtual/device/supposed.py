"""Numbers that depend on data, in runs on fake tensors: the program says what they would be.

A norm, a loss, the number of tokens that a router sends to an expert: a program that asks for them goes on with them.
Fake tensors have none, so `suppose` declares them by the names at the line that asks. The program itself stays as it is
for real tensors, where `suppose` changes nothing.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.program import is_learners
from labkit.torch_versions.dispatch import no_modes
from labkit.torch_versions.fake_tensors import FakeTensor


class _Supposed:
    """The numbers of one `suppose`, and which of them were asked for."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.asked: set[str] = set()


_scopes: ContextVar[tuple[_Supposed, ...]] = ContextVar("scopes", default=())


@contextmanager
def suppose(**numbers: float | Sequence[Any] | Tensor) -> Iterator[None]:
    """Within this block, on fake tensors: the numbers that the program asks for have these values.

        with suppose(norm=0.5, counts=[16] * num_experts):
            layer(tokens)

    A name must be in the line that asks, whoever wrote it: `norm` in `norm = gradient.norm().item()` or `if norm > 1:`.
    Each is one number for all elements, or numbers in the tensor's shape. Real tensors keep their own numbers, and so
    do fake ones whose numbers are known. Raises ValueError if the numbers do not have the shape or kind that is asked
    for, if a line has several of the names, and, at the block's end, for a name that no line asked for.
    """
    mine = _Supposed(numbers)
    token = _scopes.set((*_scopes.get(), mine))
    try:
        yield
    finally:
        _scopes.reset(token)
    unused = [name for name in numbers if name not in mine.asked]
    if unused and isinstance(torch.empty(0), FakeTensor):
        raise ValueError(f"suppose: no number of a fake tensor was asked for at a line with {_listed(unused)}")


def supposed(shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
    """The numbers of a fake tensor of this shape for the line that asks for them; None if they are not declared.

    Raises ValueError as `suppose` says.
    """
    scopes = _scopes.get()
    if not scopes:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    words = _words_at(frame)
    for scope in reversed(scopes):
        named = [name for name in scope.numbers if name in words]
        if len(named) > 1:
            raise ValueError(f"suppose: this line has {_listed(named)}; which one is meant? Ask on two lines")
        if named:
            scope.asked.add(named[0])
            return _in_form(named[0], scope.numbers[named[0]], shape, dtype)
    return None


def advice() -> str:
    """Advice for a number that the program asks for and does not declare."""
    names = [name for scope in _scopes.get() for name in scope.numbers]
    return f"of `labkit.suppose`, this line has no {_listed(names, 'or')}" if names else "see `labkit.suppose`"


def _words_at(frame: FrameType) -> frozenset[str]:
    """The names in the statement that a frame is at; of a compound one, in its head."""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    return _words("".join(lines), frame.f_lineno)


@functools.lru_cache(maxsize=256)
def _words(text: str, line: int) -> frozenset[str]:
    first = last = line
    with suppress(SyntaxError):
        statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        around = [node for node in statements if node.lineno <= line <= (node.end_lineno or node.lineno)]
        if around:
            nearest = max(around, key=lambda node: node.lineno)
            body = getattr(nearest, "body", None)
            first = nearest.lineno
            last = max(line, body[0].lineno - 1) if body else nearest.end_lineno or line
    return frozenset(re.findall(r"[^\W\d]\w*", "\n".join(text.splitlines()[first - 1 : last])))


def _in_form(name: str, numbers: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    with no_modes():
        declared = torch.as_tensor(numbers)
        if declared.dim() and declared.shape != torch.Size(shape):
            raise ValueError(f"suppose: {name} has the shape {tuple(declared.shape)}; asked for is {tuple(shape)}")
        value = declared.to(dtype)
        if not dtype.is_floating_point and not torch.equal(value.to(torch.float64), declared.to(torch.float64)):
            raise ValueError(f"suppose: {name}={numbers!r} is asked for as {dtype}, which has no such number")
        return value.expand(tuple(shape))


def _listed(names: list[str], conjunction: str = "and") -> str:
    return f" {conjunction} ".join(f"`{name}`" for name in names)
