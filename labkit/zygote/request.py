"""What a zygote is asked for, and where it listens."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

Program = Callable[[Any, list[int]], object]
"""What a process is to run; called with its arguments and the descriptors beyond the standard streams."""


@dataclass(frozen=True)
class Request:
    """What a process is to be."""

    program: Program
    """A function of a module, which the zygote imports by name."""
    arguments: Any
    """JSON."""
    environment: Mapping[str, str]
    """All of it."""
    folder: str
    """Working directory."""
    name: str
    """As `ps` shows it, at most 15 characters."""

    def fields(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**vars(self), "program": name_of(self.program), "environment": dict(self.environment)}

    @staticmethod
    def from_fields(given: Mapping[str, Any]) -> Request:
        """The inverse of `fields`. Imports the program. Raises what the import raises."""
        return Request(**{**given, "program": program_of(given["program"])})

    @staticmethod
    def check(given: Mapping[str, Any]) -> None:
        """Raise ValueError unless `given` has the fields of a request."""
        wanted = {field.name for field in fields(Request)}
        if given.keys() != wanted:
            raise ValueError(
                f"a request has the fields {', '.join(sorted(wanted))}; other or missing: "
                f"{', '.join(sorted(given.keys() ^ wanted))}"
            )


def name_of(program: Program) -> str:
    """Return `package.module:function`, the inverse of `program_of`."""
    return f"{program.__module__}:{program.__qualname__}"


def program_of(name: str) -> Program:
    """Return the function, whose module it imports. Raises what the import raises."""
    program: Program = pkgutil.resolve_name(name)
    return program


def address_of(text: str) -> str:
    """Return what the kernel calls the address."""
    return f"\0{text[1:]}" if text.startswith("@") else text
