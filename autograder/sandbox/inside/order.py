"""What a sandbox is to be, as the grader asks for it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

PREPARED = "labkit.clusters.virtual.remote:main"
"""What judged calls begin with: all that their ranks have in common is done once, before any sandbox is forked."""


@dataclass(frozen=True)
class Order:
    """Limits of one sandbox, and who its processes are. Plain data."""

    home: str
    uid: int | None
    """As root: become this user. None: stay who you are."""
    processes: int
    data_bytes: int
    """Private memory of one process."""
    file_bytes: int
    scratch_bytes: int
    """Size of /tmp, of /dev/shm and of the home folder, each."""
    cpu_seconds: int
    """Of one process."""
    prepared: str = ""
    """`PREPARED`, or empty for a sandbox that serves all else."""
    apart: bool = False
    """Ranks cannot reach each other in ways that nobody counts."""
    network: bool = False
    """They can on the sandbox's loopback, where the kernel counts bytes."""
    open_files: int = 1024

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Order:
        return Order(**json.loads(text))
