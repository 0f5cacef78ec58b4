"""Entry points of processes that host virtual ranks, for those who request them.

What runs in these processes takes a second to import and 50 MB, which a notebook's kernel and a judge can do without:
it is imported in the functions.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from labkit.clusters.forkserver.entry import Entry, Reporter
from labkit.clusters.job import Job


def _host(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    from labkit.clusters.virtual.hosts import host

    host.main(job, index, options, reporter, sock)


def _load_host() -> None:
    from labkit.clusters.virtual.hosts import host as host


def _remote(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    from labkit.clusters.virtual.hosts import remote

    remote.main(job, index, options, reporter, sock)


def _load_remote() -> None:
    from labkit.clusters.virtual.hosts import remote as remote


def _prepare_remote() -> None:
    from labkit.clusters.virtual.hosts import remote

    remote.prepare_forks()


HOST = Entry(_host, _load_host)
"""One process for all ranks of a run, which are its threads."""
REMOTE = Entry(_remote, _load_remote, _prepare_remote)
"""A process for each rank. It asks the scheduler over its socket."""
