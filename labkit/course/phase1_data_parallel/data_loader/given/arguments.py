"""Arguments of samplers and loaders, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.course.arguments import instance_of, integer, known_device, require

__all__ = ["known_device", "require_integer", "require_iterable"]


def require_integer(name: str, value: Any, *, at_least: int, below: int | None = None) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, is an int, not a bool, within the limits."""
    require(name, value, integer(at_least=at_least, below=below))


def require_iterable(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, can be iterated over."""
    require(name, value, instance_of(Iterable, "something to iterate over"))
