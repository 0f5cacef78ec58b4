"""What is requested of a forkserver, and where one listens. Requests are trusted: their sender can run any code."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

Program = Callable[[Any, list[int]], object]
"""What a process runs: a function of a module, called with its arguments and its own descriptors."""
Load = Callable[[], object]
"""Imports what programs need, or prepares it; a function of a module."""
MAX_DESCRIPTORS = 16
"""Of one message."""


@dataclass(frozen=True)
class Ahead:
    """A process that may be forked before the request for it.

    Its only descriptor is a socket. `spares.taken` returns the descriptors of the request that it serves, in place of
    the request's own program.
    """

    program: Program
    arguments: Any
    """JSON."""
    signal: int = 0
    """Signal that it gets when the forkserver ends; 0: none."""


@dataclass(frozen=True)
class Request:
    """What a process is to be. Functions travel by name; the forkserver imports their modules."""

    program: Program
    arguments: Any = None
    """JSON."""
    environment: Mapping[str, str] | None = None
    """All of it; None: the forkserver's."""
    folder: str | None = None
    """Working directory; None: the forkserver's."""
    name: str | None = None
    """As `ps` shows it, at most 15 characters; None: as the forkserver."""
    signal: int = 0
    """Signal that it gets when the forkserver ends; 0: none."""
    prints: bool = False
    """Whether the first of its descriptors is where it prints: its standard output and error output."""
    inherits: bool = False
    """Whether it keeps what programs of the forkserver have open, besides its own descriptors."""
    imports: tuple[Callable[..., object], ...] = ()
    """Functions whose modules the forkserver imports before it forks."""
    load: tuple[Load, ...] = ()
    """What the forkserver runs before it forks, once for all forks."""
    prepare: Load | None = None
    """What another forkserver, forked from this one, runs once: only requests with the same preparation go there."""
    ahead: Ahead | None = None
    """What the forkserver may fork for the next request that has the same."""

    def to_message(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            **vars(self),
            "program": name_of(self.program),
            "environment": None if self.environment is None else dict(self.environment),
            "imports": [name_of(one) for one in self.imports],
            "load": [name_of(one) for one in self.load],
            "prepare": None if self.prepare is None else name_of(self.prepare),
            "ahead": None if self.ahead is None else {**vars(self.ahead), "program": name_of(self.ahead.program)},
        }


_FIELDS = frozenset(field.name for field in fields(Request))


def check(message: Mapping[str, Any]) -> None:
    """Raise ValueError unless it has the fields of a request."""
    if wrong := message.keys() ^ _FIELDS:
        raise ValueError(f"fields of a request that are missing, or are none: {', '.join(sorted(wrong))}")


def name_of(function: Callable[..., object]) -> str:
    """Return `package.module:function`."""
    return f"{function.__module__}:{function.__qualname__}"


def function_of(name: str) -> Callable[..., object]:
    """The inverse of `name_of`: imports the function's module. Raises what the import raises."""
    function: Callable[..., object] = pkgutil.resolve_name(name)
    return function


def address_of(text: str) -> str:
    """Return what the kernel calls the address: a path, or a name after `@`, which only this network namespace has."""
    return f"\0{text[1:]}" if text.startswith("@") else text
