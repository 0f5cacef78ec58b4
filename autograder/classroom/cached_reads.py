"""Reads of folders and files that are repeated only after a change, for pages and services that ask every second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_SETTLED_NS = 1_000_000_000
"""A read so soon after the last change is repeated: a second change may have the same time."""


class CachedReads(Generic[T]):
    """Results of `read` by path.

    read: reads a file, or a folder whose files are replaced, never written in place; it accepts a missing path.
    """

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._known: dict[Path, tuple[tuple[int, int, int], T]] = {}

    def __call__(self, path: Path) -> T:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            self._known.pop(path, None)
            return self._read(path)
        state = (status.st_mtime_ns, status.st_size, status.st_ino)
        if (known := self._known.get(path)) is not None and known[0] == state:
            return known[1]
        now = time.time_ns()
        result = self._read(path)
        if now - status.st_mtime_ns > _SETTLED_NS:
            self._known[path] = (state, result)
        return result
