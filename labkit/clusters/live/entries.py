"""Entry point of the process that hosts live virtual ranks, for those who request it; see virtual/hosts/entries.py."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from labkit.clusters.forkserver.entry import Entry, Reporter
from labkit.clusters.job import Job


def _main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    from labkit.clusters.live import virtual

    virtual.main(job, index, options, reporter, sock)


def _load() -> None:
    from labkit.clusters.live import virtual as virtual


VIRTUAL_RANKS = Entry(_main, _load)
"""All ranks of a virtual cluster, as threads of one process."""
