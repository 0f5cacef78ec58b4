"""The open files of this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection


def open_descriptors() -> list[int]:
    """All open file descriptors. One of them, through which the others were listed, is closed again."""
    return [int(name) for name in os.listdir("/proc/self/fd")]


def close_all_but(kept: Collection[int | None]) -> None:
    """Close inherited descriptors: a pipe ends only when all of its writing ends are closed."""
    for descriptor in open_descriptors():
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
