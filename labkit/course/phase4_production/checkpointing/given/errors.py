"""Errors of checkpoints, and their descriptions."""

from __future__ import annotations

import errno
from collections.abc import Sequence


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message names the rank, the file and the cause."""


_CAUSES = {
    errno.ENOSPC: "the disk is full: free some space, or keep fewer checkpoints",
    errno.EDQUOT: "the disk quota is used up: free some space, or keep fewer checkpoints",
    errno.EROFS: "the file system is read-only: choose another checkpoint_dir",
    errno.EACCES: "no permission to write there: choose another checkpoint_dir",
    errno.EPERM: "no permission to write there: choose another checkpoint_dir",
    errno.EIO: "the device reports an I/O error",
    errno.ENOENT: "no such file or folder",
}


def failure(problems: Sequence[str | None]) -> CheckpointError:
    """Return the error of a step that failed on some ranks. problems: one for each rank in order, None if it has none.

    Ranks with the same problem are named together.
    """
    ranks: dict[str, list[str]] = {}
    for rank, problem in enumerate(problems):
        if problem is not None:
            ranks.setdefault(problem, []).append(str(rank))
    return CheckpointError("; ".join(f"rank {', '.join(numbers)}: {problem}" for problem, numbers in ranks.items()))


def describe(error: BaseException) -> str:
    """Return a description of the error: what happened, where, and what to do."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError):
        cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
        return f"{error.filename}: {cause}" if error.filename else cause
    return f"{type(error).__name__}: {error}"
