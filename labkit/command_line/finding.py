"""Result of an examination by `labkit doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """State of a row of the table; the value is its colour."""

    OK = "green"
    MISSING = "yellow"
    FAILED = "red"


@dataclass(frozen=True)
class Finding:
    """Result of one examination. Only `FAILED` makes the command fail: missing parts are optional."""

    state: State
    seen: str
    advice: str = ""
