"""Rare passages shared between submissions: fingerprints, weighted by how few share them.

Passages of the template, the solution, its variants and mutants are ignored. Of the rest, a fingerprint weighs 1 when
two submissions have it and less the more do, down to 0 when more than half of them have it. Two submissions are a pair
when the shared weight is large enough, both absolute (`ENOUGH`) and relative to the shorter one's own code (`SHARE`):
so padding hides nothing, and three equal lines prove nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autograder.integrity.fingerprints import GRAM, winnowed
from autograder.integrity.workers import Reading

ENOUGH = 12.0
"""Minimum shared weight: about 12 rare fingerprints, six lines of code."""
SHARE = 0.355
"""Set between known cases, which lie close: the most similar of 666 independent pairs share 0.352 where only the
template is known, the least similar of four copies rewritten by hand 0.358."""
_COLUMNS = 4096
_PLACES = 4
"""Maximum positions examined for a token run that a text repeats."""


@dataclass(frozen=True)
class Passage:
    """Equivalent lines of two modules."""

    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class Likeness:
    """Two submissions, as indexes into the compared sequence."""

    left: int
    right: int
    share: float
    """Shared fraction of the shorter one's own code, by weight: 0 to 1."""
    weight: float


def known_grams(readings: Sequence[Reading]) -> frozenset[int]:
    """Return the token runs to ignore: all those of the course's own modules."""
    return frozenset(gram for reading in readings for function in reading.grams for gram in function)


def own_fingerprints(reading: Reading, known: Set[int]) -> set[int]:
    """Return the winnowed fingerprints of a module, without the known ones."""
    fingerprints: set[int] = set()
    for function in reading.grams:
        fingerprints |= winnowed(function)
    return fingerprints - known


def weight(having: int, of: int) -> float:
    """Return the weight of a fingerprint that `having` of `of` submissions have: 1 for two or fewer, 0 for the many."""
    if having > max(of / 2, 3):
        return 0.0
    return math.log(of / max(having - 1, 1)) / math.log(of) if of > 2 else 1.0


def alike(own: Sequence[Set[int]], ours: int) -> tuple[list[Likeness], list[float]]:
    """Return pairs among the first `ours` submissions and of those with later ones, and the weight of each one's own
    code.

    Most similar pairs first. Time grows with the number of submissions squared, times shared fingerprints, in numpy.
    """
    having = Counter(f for fingerprints in own for f in fingerprints)
    weights = {f: weight(count, len(own)) for f, count in having.items()}
    totals = [math.fsum(weights[f] for f in fingerprints) for fingerprints in own]
    shared = [f for f, count in having.items() if count > 1 and weights[f] > 0]
    holders = defaultdict(list)
    for index, fingerprints in enumerate(own):
        for f in fingerprints:
            holders[f].append(index)
    common: NDArray[np.float32] = np.zeros((ours, len(own)), np.float32)
    for start in range(0, len(shared), _COLUMNS):
        part = shared[start : start + _COLUMNS]
        block = np.zeros((len(own), len(part)), np.float32)
        for column, f in enumerate(part):
            block[holders[f], column] = math.sqrt(weights[f])
        common += block[:ours] @ block.T
    likenesses = []
    for left, right in np.argwhere(common >= ENOUGH - 1e-3).tolist():
        if left >= right:
            continue
        share = float(common[left, right]) / min(totals[left], totals[right])
        if share >= SHARE:
            likenesses.append(Likeness(left, right, min(share, 1.0), float(common[left, right])))
    return sorted(likenesses, key=lambda pair: (-pair.share, -pair.weight)), totals


def passages(left: Reading, right: Reading, known: Set[int]) -> list[Passage]:
    """Return what two modules share beyond the given material, longest first."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for unit, function in enumerate(right.grams):
        for at, gram in enumerate(function):
            if gram not in known and len(places[gram]) < _PLACES:
                places[gram].append((unit, at))
    given_left, given_right = _given(left, known), _given(right, known)
    shared = []
    for unit, function in enumerate(left.grams):
        at = 0
        while at < len(function):
            length, place = max(
                ((_run(function, at, right.grams[u], p), (u, p)) for u, p in places.get(function[at], ())),
                default=(0, (0, 0)),
            )
            if length:
                mine = _lines(left, unit, at, length, given_left)
                theirs = _lines(right, *place, length, given_right)
                if mine and theirs:
                    shared.append((length, Passage(mine, theirs)))
            at += max(length, 1)
    return [passage for _, passage in sorted(shared, key=lambda f: (-f[0], f[1].left))]


def _run(left: Sequence[int], at: int, right: Sequence[int], place: int) -> int:
    length = 0
    while at + length < len(left) and place + length < len(right) and left[at + length] == right[place + length]:
        length += 1
    return length


def _given(reading: Reading, known: Set[int]) -> set[tuple[int, int]]:
    """Return tokens, by function and place, inside a known run."""
    return {
        (unit, at + step)
        for unit, function in enumerate(reading.grams)
        for at, gram in enumerate(function)
        if gram in known
        for step in range(GRAM)
    }


def _lines(reading: Reading, unit: int, at: int, length: int, given: Set[tuple[int, int]]) -> tuple[int, ...]:
    tokens = range(at, at + length + GRAM - 1)
    return tuple(sorted({reading.lines[unit][token] for token in tokens if (unit, token) not in given} - {0}))
