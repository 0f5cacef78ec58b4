"""Whose parts are in a sum over ranks: if rank r's part is 10**r, each decimal digit counts the parts of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from labkit.clusters.rank_lists import named_ranks, ranges

EXPLANATION = "rank r gives 10^r, so each digit of a sum counts the parts of one rank, rank 0's last"
_MOST_LINES = 8


class Parts(NamedTuple):
    """How often each rank's part is in one chunk of a result."""

    seen: tuple[int, ...] | None
    """Number of parts by rank; None if the number is no sum of parts."""
    wanted: tuple[int, ...]


def count_parts(values: Sequence[Any], expected: Sequence[Any], world_size: int, chunks: int) -> dict[int, list[Parts]]:
    """Return the parts in the wrong results, chunk by chunk, by the rank that has the result.

    Empty if no wrong number can be read as a sum of parts. chunks: how many equal chunks a tensor has; 1: not cut.
    A chunk is judged by its first wrong element; those without elements are omitted.
    """
    wrong = {}
    for rank, (value, wanted) in enumerate(zip(values, expected, strict=True)):
        if isinstance(value, Tensor) and isinstance(wanted, Tensor) and value.shape == wanted.shape:
            by_chunk = _by_chunk(value, wanted, world_size, chunks)
            if any(parts.seen != parts.wanted for parts in by_chunk):
                wrong[rank] = by_chunk
    return wrong if in_words(wrong) else {}


def in_words(parts: Mapping[int, Sequence[Parts]]) -> str:
    """Return a line for the ranks with the same wrong sums: `rank 0: chunk 2 without rank 1's part (1101)`."""
    alike: dict[str, list[int]] = {}
    for rank, by_chunk in parts.items():
        if description := _wrong_chunks(by_chunk):
            alike.setdefault(description, []).append(rank)
    lines = [f"{named_ranks(those)}: {description}" for description, those in alike.items()]
    more = len(lines) - _MOST_LINES
    return "\n".join([*lines[:_MOST_LINES], f"and {more} more lines"] if more > 0 else lines)


def _by_chunk(value: Tensor, wanted: Tensor, world_size: int, chunks: int) -> list[Parts]:
    flat, right = value.reshape(-1), wanted.reshape(-1)
    length = max(1, -(-flat.numel() // chunks))
    by_chunk = []
    for start in range(0, flat.numel(), length):
        wrong = (flat[start : start + length] != right[start : start + length]).nonzero()
        index = start + (int(wrong[0]) if len(wrong) else 0)
        counts = _counts(right[index].item(), world_size)
        assert counts is not None, "a check expects a sum of parts"
        by_chunk.append(Parts(_counts(flat[index].item(), world_size), counts))
    return by_chunk


def _counts(number: Any, world_size: int) -> tuple[int, ...] | None:
    """Return the digits of a sum of parts, rank 0's first; None for a number that is no such sum."""
    if isinstance(number, complex) or not (0 <= number < 10**world_size and number == int(number)):
        return None
    return tuple(int(digit) for digit in reversed(f"{int(number):0{world_size}}"))


def _wrong_chunks(by_chunk: Sequence[Parts]) -> str:
    """Describe the wrong chunks of one rank, those with the same sum together."""
    alike: dict[str, list[int]] = {}
    for chunk, parts in enumerate(by_chunk):
        if description := _difference(parts):
            alike.setdefault(description, []).append(chunk)
    if len(by_chunk) == 1:
        return next(iter(alike), "")
    return "; ".join(
        f"chunk{'s' * (len(those) > 1)} {ranges(those)} {description}" for description, those in alike.items()
    )


def _difference(parts: Parts) -> str:
    """`without rank 2's part (1011)`, `with rank 0's part 3 times (1113)`; empty if no part is missing or too many."""
    seen, wanted = parts
    if seen is None:
        return ""
    number = sum(count * 10**rank for rank, count in enumerate(seen))
    missing = [rank for rank, count in enumerate(wanted) if count and not seen[rank]]
    there = [rank for rank, count in enumerate(seen) if count]
    if len(there) < len(missing) and all(seen[rank] == 1 for rank in there):
        return f"with nothing but {_of(there)} ({number})" if there else "with no part of any rank (0)"
    clauses = [f"without {_of(missing)}"] if missing else []
    if too_many := _too_many(parts):
        clauses.append(f"with {' and '.join(too_many)}")
    return f"{' and '.join(clauses)} ({number})" if clauses else ""


def _too_many(parts: Parts) -> list[str]:
    """`rank 0's part twice`, those that are there equally often together."""
    alike: dict[tuple[int, bool], list[int]] = {}
    for rank, (count, wanted) in enumerate(zip(parts.seen or (), parts.wanted, strict=True)):
        if count > wanted:
            alike.setdefault((count, wanted > 0), []).append(rank)
    clauses = []
    for (count, belongs), ranks in alike.items():
        does = "does" if len(ranks) == 1 else "do"
        times = "twice" if count == 2 else f"{count} times"
        clauses.append(f"{_of(ranks)} {times}" if belongs else f"{_of(ranks)}, which {does} not belong there,")
    return [*clauses[:-1], *(last.rstrip(",") for last in clauses[-1:])]


def _of(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}'s part" if len(ranks) == 1 else f"the parts of ranks {ranges(ranks)}"
