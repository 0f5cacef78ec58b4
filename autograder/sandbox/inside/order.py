"""The grader's order for a sandbox."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Order:
    """Limits of one sandbox and the user of its processes. Plain data."""

    home: str
    uid: int | None
    """User id to switch to when root; None keeps the current user."""
    processes: int
    data_bytes: int
    """Private memory of one process, in bytes."""
    file_bytes: int
    scratch_bytes: int
    """Size of /tmp, of /dev/shm and of the home folder, each."""
    scratch_files: int
    """Number of files and folders in each of them."""
    cpu_seconds: int
    """CPU seconds of one process."""
    virtual: bool = False
    """Whether it is for virtual ranks that are processes, which need a preparation; otherwise for all other runs."""
    apart: bool = False
    """Whether ranks are prevented from reaching each other in uncounted ways."""
    network: bool = False
    """Whether they may use the sandbox's loopback, where the kernel counts bytes."""
    open_files: int = 1024

    def fields(self) -> dict[str, Any]:
        """Return it as a JSON object; `Order(**fields)` is the inverse."""
        return asdict(self)
