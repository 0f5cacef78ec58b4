"""Numbers as people read them: seconds as s, ms, µs or ns; bytes as KiB, MiB, GiB; how many of what."""

from __future__ import annotations


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a span of `seconds` has one to three digits before the point, and how many seconds it is."""
    for name, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return name, size
    return ("ns", 1e-9) if seconds > 0 else ("s", 1.0)


def duration(seconds: float) -> str:
    """`0.00123` as `1.23 ms`."""
    name, size = time_unit(seconds)
    return f"{seconds / size:.3g} {name}"


def byte_unit(nbytes: float) -> tuple[str, float]:
    """The binary unit in which `nbytes` is at least 1, and its size in bytes."""
    for name, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if nbytes >= size:
            return name, size
    return "B", 1.0


def size(nbytes: float) -> str:
    """`16384` as `16 KiB`."""
    name, unit = byte_unit(nbytes)
    amount = nbytes / unit
    return f"{amount:.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"


def count(number: int, noun: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
