"""Which keys of the whole sequence a rank's queries see, where all keys are at hand."""

from __future__ import annotations


def visible_in_sequence(
    rank: int, ranks: int, tokens: int, causal: bool, layout: str
) -> list[tuple[slice, slice, bool]]:
    """Return (rows, columns, diagonal) of all pairs that are not masked: a rank's queries, and keys of the sequence.

    tokens: of each rank. Every query of `rows` sees every key of `columns`; with `diagonal` both have the same places,
    and a query sees the keys up to its own.
    """
    if not causal:
        return [(slice(None), slice(None), False)]
    chunks = [rank] if layout == "contiguous" else [rank, 2 * ranks - 1 - rank]
    size = tokens // len(chunks)
    pairs = []
    for place, chunk in enumerate(chunks):
        rows = slice(place * size, (place + 1) * size)
        pairs.append((rows, slice(chunk * size, (chunk + 1) * size), True))
        if chunk > 0:
            pairs.append((rows, slice(chunk * size), False))
    return pairs
