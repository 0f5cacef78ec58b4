"""Names that look alike: by case, punctuation, or letters of other scripts (confusable characters of UTS 39)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from confusable_homoglyphs.confusables import confusables_data

_PAIRS = (("rn", "m"), ("vv", "w"), ("cl", "d"))
"""Two letters that look as one."""


def look_alike(name: str, others: Iterable[str]) -> bool:
    """Return whether a reader may take `name` for one of the others."""
    own = _readings(name)
    return any(own & _readings(other) for other in others)


def _readings(name: str) -> set[tuple[int, str]]:
    """Return keys of which one is equal for names that look alike.

    Letters are compared as written, in small and in capital letters: `I` and `l` look alike, `i` and `l` do not.
    """
    written = "".join(letter for letter in name if letter.isalnum())
    forms = (_shape(written).casefold(), _shape(written.casefold()), _shape(written.upper()))
    return set(enumerate(forms))


def _shape(text: str) -> str:
    shape = "".join(map(_family, text))
    for pair, letter in _PAIRS:
        shape = shape.replace(pair, letter)
    return shape


@cache
def _family(letter: str) -> str:
    """Return one letter for all that look like this one."""
    family, new = {letter}, [letter]
    while new:
        near = {entry["c"] for entry in confusables_data.get(new.pop(), ()) if len(entry["c"]) == 1}
        new += near - family
        family |= near
    return min(family)
