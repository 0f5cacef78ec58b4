"""Lists of ranks as text: `ranks 0-2, 5`."""

from __future__ import annotations

from collections.abc import Sequence


def named_ranks(ranks: Sequence[int]) -> str:
    """`[3]` as `rank 3`, `[0, 1, 2, 5]` as `ranks 0-2, 5`."""
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"


def ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
