"""Modules that have been imported lately: who looks at each module once need not look at all of them again.

After a fork a look at a module copies the page of memory in which it lies.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any


class ImportedModules:
    """Follows what is imported."""

    def __init__(self) -> None:
        self._last = ""

    def new(self) -> list[str]:
        """Return the names of the modules that were imported since the last call; of all, at the first."""
        names = list(itertools.takewhile(lambda name: name != self._last, reversed(sys.modules)))
        self._last = next(iter(names), self._last)
        return names


class NamesInModules:
    """Finds the modules that have some names. Those imported by now are looked at now, once for all forks."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._imported = ImportedModules()
        self._found: list[tuple[str, dict[str, Any], str]] = []
        self.find()

    def find(self) -> list[tuple[str, dict[str, Any], str]]:
        """Return, for each such name in each module imported so far: the module's name, its namespace, the name."""
        for module in self._imported.new():
            namespace = getattr(sys.modules[module], "__dict__", {})
            self._found.extend((module, namespace, name) for name in self._names if name in namespace)
        return self._found
