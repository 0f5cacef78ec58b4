"""Winnowed fingerprints of token lists (Schleimer, Wilkerson & Aiken, "Winnowing", SIGMOD 2003; the method of MOSS).

Each run of `GRAM` tokens is hashed; of every `WINDOW` consecutive hashes the smallest is kept. So two texts that share
a run of GRAM + WINDOW - 1 tokens always share a fingerprint, and a text shorter than GRAM tokens has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

GRAM = 10
WINDOW = 4


def grams(words: Sequence[str]) -> list[int]:
    """Return the hash of each run of `GRAM` words, the same in every process."""
    return [
        int.from_bytes(blake2b("\0".join(words[i : i + GRAM]).encode(), digest_size=8).digest(), "big")
        for i in range(len(words) - GRAM + 1)
    ]


def winnowed(hashes: Sequence[int]) -> set[int]:
    """Return the selected hashes."""
    if len(hashes) <= WINDOW:
        return {min(hashes)} if hashes else set()
    return {min(hashes[i : i + WINDOW]) for i in range(len(hashes) - WINDOW + 1)}
