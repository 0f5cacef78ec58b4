"""The control group of a learner's server, by which the kernel enforces the limit of memory."""

from __future__ import annotations

from collections.abc import Callable

from autograder.sandbox import cgroups
from autograder.sandbox.cgroups import Cgroup


def new_group(memory_bytes: int, processes: int, warn: Callable[[str], object]) -> Cgroup | None:
    """Return a new group; None where none can be made, or nothing is limited by it. memory_bytes: 0: no limit."""
    parents = cgroups.prepare() if memory_bytes else None
    try:
        return None if parents is None else Cgroup.new(parents, memory_bytes, processes)
    except OSError as problem:
        warn(f"no control group could be made for a server: {problem}")
        return None
