"""The times at which Python's garbage collector runs, which frees the memory that references in a cycle hold.

By itself it runs after some number of new objects of the whole process. So how long garbage counts as a rank's memory
would depend on how many ranks share a process, and on whatever else happens in it. For ranks on fake tensors it runs
after fixed numbers of new storages instead. Where such ranks run ahead of the virtual clock, the order of their turns
varies all the same: there it is only noted that garbage has held memory, and they run again in one process.
"""

from __future__ import annotations

import gc
from typing import Literal

_STORAGES = 100
_YOUNG = 10
"""Number of collections of young objects for each collection that includes those of medium age."""
_MIDDLE = 10
"""Number of the latter, for each rank of the process, for each collection of all objects."""
_OBJECTS = 100_000
"""New objects after which the collector runs in any case. With tensors, `_STORAGES` is reached sooner."""


class Collector:
    """Python's garbage collector in this process. Until `count_storages` is called, it runs as always."""

    counts_storages = False
    at_work = False
    """Whether it is running, once it is watched: objects that end now have been in a cycle, or were held by one."""
    has_freed_memory = False
    """Whether it has ever freed memory of a rank that runs ahead."""

    def __init__(self) -> None:
        self._ranks = 1
        self._storages = 0
        self._times = 0
        self._has_looked = False

    def count_storages(self, ranks: int) -> None:
        """From now on run after fixed numbers of storages of this process's ranks."""
        self._ranks = ranks
        self.counts_storages = True
        gc.set_threshold(_OBJECTS, _YOUNG, _MIDDLE * ranks)

    def count_storage(self) -> None:
        """Count a new one; run if it is time to, unless the program has called `gc.disable`."""
        self._storages += 1
        if self._storages == _STORAGES:
            self._storages = 0
            self._times = times = self._times + 1
            if gc.isenabled():
                oldest = 0 if times % _YOUNG else 1 if times % (_YOUNG * _MIDDLE * self._ranks) else 2
                gc.collect(oldest)

    def look_once(self) -> None:
        """Run at the end of the first of this process's ranks, while its memory still counts.

        If there is garbage, it must be found: whether the ranks run again may not depend on chance.
        """
        if not self._has_looked:
            self._has_looked = True
            gc.collect()

    def watch(self) -> None:
        """Follow when it is at work."""
        gc.callbacks.append(self._enter_phase)

    def _enter_phase(self, phase: Literal["start", "stop"], _: dict[str, int]) -> None:
        self.at_work = phase == "start"


collector = Collector()
