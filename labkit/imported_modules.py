"""Modules imported since the last look, for code that has to look at each module once.

After a fork, looking at a module copies the page of memory in which it lies.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any


class ImportedModules:
    """Reports newly imported modules."""

    def __init__(self) -> None:
        self._last = ""

    def new(self) -> list[str]:
        """Return the names of modules imported since the last call; at the first call, of all modules."""
        names = list(itertools.takewhile(lambda name: name != self._last, reversed(sys.modules)))
        self._last = next(iter(names), self._last)
        return names


class NamesInModules:
    """Finds the modules that define some names. It looks at those imported by now at once, before later forks."""

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
