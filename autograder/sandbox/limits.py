"""What one submission may use up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a submission may use up, all its processes together unless told otherwise."""

    processes: int
    """Threads included."""
    memory_bytes: int
    scratch_bytes: int
    """Size of /tmp, of /dev/shm and of the home folder, each."""
    file_bytes: int
    """Size of one file."""
    cpu_seconds: int
    wall_seconds: float
    """From its first process to its end, as if no other program had taken a core from it."""
    apart: bool = True
    """Virtual ranks reach the judge, and not each other."""
