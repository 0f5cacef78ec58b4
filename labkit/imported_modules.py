"""Modules that have been imported lately: who looks at each module once need not look at all of them again.

After a fork a look at a module copies the page of memory in which it lies.
"""

from __future__ import annotations

import itertools
import sys


class ImportedModules:
    """Follows what is imported."""

    def __init__(self) -> None:
        self._last = ""

    def new(self) -> list[str]:
        """Return the names of the modules that were imported since the last call; of all, at the first."""
        names = list(itertools.takewhile(lambda name: name != self._last, reversed(sys.modules)))
        self._last = next(iter(names), self._last)
        return names
