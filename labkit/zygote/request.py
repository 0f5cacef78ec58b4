"""What a zygote is asked for, and where it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """What a process is to be."""

    program: str
    """`package.module:function`, called with `arguments` and the descriptors beyond the standard streams."""
    arguments: Any
    """JSON."""
    environment: Mapping[str, str]
    """All of it."""
    folder: str
    """Working directory."""
    name: str
    """As `ps` shows it, at most 15 characters."""


def address_of(text: str) -> str:
    """Return what the kernel calls the address."""
    return f"\0{text[1:]}" if text.startswith("@") else text
