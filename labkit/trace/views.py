"""Registry of views of a trace or a study, so that lower packages can show views that are drawn by higher ones.

`labkit/__init__.py` registers them, so they are available whichever part of labkit is imported first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_VIEWS: dict[str, Callable[[Any], Any]] = {}


def register(name: str, view: Callable[[Any], Any]) -> None:
    """Register `view` under `name`; it should import what it needs only when called."""
    _VIEWS[name] = view


def make(name: str, subject: Any) -> Any:
    """Make the view of that name, of a trace or of what else it shows. Raises KeyError if it is not registered."""
    return _VIEWS[name](subject)
