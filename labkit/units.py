"""Human-readable numbers: seconds as s, ms, µs or ns; bytes as kB, MB, GB; counts with a noun."""

from __future__ import annotations


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which `seconds` has one to three digits before the point, and its length in seconds."""
    for name, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return name, size
    return ("ns", 1e-9) if seconds > 0 else ("s", 1.0)


def duration(seconds: float) -> str:
    """Format `0.00123` as `1.23 ms`."""
    name, size = time_unit(seconds)
    return f"{seconds / size:.3g} {name}"


def byte_unit(nbytes: float) -> tuple[str, float]:
    """Return the decimal unit in which `nbytes` is at least 1, and its size in bytes: link rates are decimal too."""
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return name, size
    return "B", 1.0


def size(nbytes: float) -> str:
    """Format `16000` as `16 kB`."""
    name, unit = byte_unit(nbytes)
    amount = nbytes / unit
    return f"{amount:.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"


def exact_size(nbytes: float) -> str:
    """Format `41622900` as `41.6 MB (41,622,900 bytes)`, and less than 10,000 as `6144 bytes`."""
    return count(round(nbytes), "byte") if nbytes < 10_000 else f"{size(nbytes)} ({round(nbytes):,} bytes)"


def count(number: int, noun: str) -> str:
    """Format as `1 rank`, `4 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
