"""Resource limits of one submission."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Resource limits of a submission, for all its processes together unless stated otherwise."""

    processes: int
    """Number of processes, including threads."""
    memory_bytes: int
    scratch_bytes: int
    """Size of /tmp, of /dev/shm and of the home folder, each."""
    scratch_files: int
    """Number of files and folders in each of them."""
    file_bytes: int
    """Size of one file."""
    cpu_seconds: int
    wall_seconds: float
    """Seconds from the first process to the end, as if no other program had used the submission's cores."""
    apart: bool
    """Whether virtual ranks reach only the judge, not each other."""
