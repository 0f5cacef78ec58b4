"""A term of a prediction: one part of the step, with its formula and its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One part of the step on the rank that determines its length."""

    name: str
    kind: str
    """compute, communication, bubble, optimizer, data or waiting."""
    seconds: float
    formula: str
    source: str


def in_ms(seconds: float) -> str:
    """`seconds` as text in milliseconds, for the formula of a `Term`."""
    return f"{1e3 * seconds:.4g} ms"
