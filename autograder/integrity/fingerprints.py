"""Winnowed fingerprints of token lists (Schleimer, Wilkerson & Aiken, "Winnowing", SIGMOD 2003; the method of MOSS).

Each run of `GRAM` tokens is hashed; of every `WINDOW` consecutive hashes the least one is kept. So two texts that share
a run of GRAM + WINDOW - 1 tokens share a fingerprint for certain, and one that is shorter than GRAM tokens gives none.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

GRAM = 10
WINDOW = 4


def grams(words: Sequence[str]) -> list[int]:
    """The hash of each run of `GRAM` words, the same in every process."""
    return [
        int.from_bytes(blake2b("\0".join(words[i : i + GRAM]).encode(), digest_size=8).digest(), "big")
        for i in range(len(words) - GRAM + 1)
    ]


def winnowed(hashes: Sequence[int]) -> set[int]:
    """The hashes that are kept."""
    if len(hashes) <= WINDOW:
        return {min(hashes)} if hashes else set()
    return {min(hashes[i : i + WINDOW]) for i in range(len(hashes) - WINDOW + 1)}
