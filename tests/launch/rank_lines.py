"""The output of `labkit launch`, taken apart: equal lines are shown once if they arrive together, which is chance."""

from __future__ import annotations

import re


def of_each_rank(output: str) -> dict[int, list[str]]:
    """The lines of each rank: `[0-1] x` is one of both."""
    lines: dict[int, list[str]] = {}
    for line in output.splitlines():
        found = re.fullmatch(r"\[(?:\d+:)?([\d, -]+)(?: stderr)?\] (.*)", line)
        assert found, line
        for part in found[1].split(", "):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                lines.setdefault(rank, []).append(found[2])
    return lines
