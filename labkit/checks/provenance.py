"""Whose parts are in a sum over ranks: if rank r's part is 10**r, each decimal digit counts the parts of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from labkit.clusters.run import ranges

EXPLANATION = "rank r gives 10^r, so each digit of a sum counts the parts of one rank, rank 0's last"
_MOST_LINES = 8


def parts_by_rank(values: Sequence[Any], expected: Sequence[Any], world_size: int, chunks: int) -> str:
    """Return a line for the ranks with the same wrong sums: `rank 0: chunk 2 without rank 1's part (1101)`.

    Empty if no wrong value can be read as a sum of parts. chunks: how many equal chunks a tensor has; 1: not cut.
    """
    alike: dict[str, list[int]] = {}
    for rank, (value, wanted) in enumerate(zip(values, expected, strict=True)):
        if isinstance(value, Tensor) and isinstance(wanted, Tensor) and value.shape == wanted.shape:
            found = _by_chunk(value, wanted, world_size, chunks)
            if found:
                alike.setdefault("; ".join(found), []).append(rank)
    lines = [f"rank{'s' * (len(those) > 1)} {ranges(those)}: {found}" for found, those in alike.items()]
    more = len(lines) - _MOST_LINES
    return "\n".join([*lines[:_MOST_LINES], f"and {more} more lines"] if more > 0 else lines)


def _by_chunk(value: Tensor, wanted: Tensor, world_size: int, chunks: int) -> list[str]:
    """Return what is wrong with the chunks of one rank, those with the same sum together."""
    flat, right = value.reshape(-1), wanted.reshape(-1)
    length = max(1, -(-flat.numel() // chunks))
    alike: dict[str, list[int]] = {}
    for chunk in range(chunks):
        part = slice(chunk * length, (chunk + 1) * length)
        wrong = (flat[part] != right[part]).nonzero()
        if len(wrong):
            index = chunk * length + int(wrong[0])
            said = _difference(float(flat[index]), float(right[index]), world_size)
            if said:
                alike.setdefault(said, []).append(chunk)
    if chunks == 1:
        return list(alike)
    return [f"chunk{'s' * (len(those) > 1)} {ranges(those)} {said}" for said, those in alike.items()]


def _difference(seen: float, wanted: float, world_size: int) -> str:
    """`without rank 2's part (1011)`, `with rank 0's part 3 times (1113)`; empty for a number that is no such sum."""
    if not (0 <= seen < 10**world_size and seen == int(seen)):
        return ""
    counts, right = (f"{int(number):0{world_size}}"[::-1] for number in (seen, wanted))
    wanted_from = [rank for rank in range(world_size) if right[rank] != "0"]
    missing = [rank for rank in wanted_from if counts[rank] == "0"]
    there = [rank for rank in range(world_size) if counts[rank] != "0"]
    if len(there) < len(missing) and all(counts[rank] == "1" for rank in there):
        return f"with nothing but {_of(there)} ({int(seen)})" if there else "with no part of any rank (0)"
    said = [f"without {_of(missing)}"] if missing else []
    for rank in range(world_size):
        if counts[rank] > max(right[rank], "0") and counts[rank] != right[rank]:
            times = f" {counts[rank]} times" if right[rank] != "0" else ", which does not belong there"
            said.append(f"with rank {rank}'s part{times}")
    return f"{' and '.join(said)} ({int(seen)})" if said else ""


def _of(ranks: list[int]) -> str:
    return f"rank {ranks[0]}'s part" if len(ranks) == 1 else f"the parts of ranks {ranges(ranks)}"
