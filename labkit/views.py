"""Registry of views of a trace, so that lower packages can show views that are drawn by higher ones.

`labkit/__init__.py` registers them, so they are available whichever part of labkit is imported first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.trace import Trace

_VIEWS: dict[str, Callable[[Trace], Any]] = {}


def register(name: str, view: Callable[[Trace], Any]) -> None:
    """Register `view` under `name`; it should import what it needs only when called."""
    _VIEWS[name] = view


def make(name: str, trace: Trace) -> Any:
    """Make the view of that name. Raises KeyError if it is not registered."""
    return _VIEWS[name](trace)
