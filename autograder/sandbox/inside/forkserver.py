"""The sandboxes' forkserver: imports torch, and forks a sandbox on each request of the grader.

It runs nothing of any submission, and no sandbox holds anything through which it could be reached. It ends with the
grader; bubblewrap's first process then ends every sandbox with it.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

from autograder.sandbox.inside import programs
from labkit.clusters.local import rank as local_rank
from labkit.clusters.virtual.hosts.entries import HOST, REMOTE
from labkit.forking.server import Server, share
from labkit.linux import huge_pages
from labkit.torch_versions import early_imports
from labkit.torch_versions.prefork_warmup import warm_up_groups

ENTRIES = (HOST, local_rank.ENTRY, REMOTE)
"""Entry points of runs; what they need is imported once for all sandboxes."""


def main(control: socket.socket) -> None:
    """Import, prepare, and fork a sandbox for every request; return when the grader is gone."""
    for entry in ENTRIES:
        if entry.load is not None:
            entry.load()
    early_imports.load_all()
    warm_up_groups()
    share()
    for _ in huge_pages.collapse():
        pass
    gc.enable()  # launch.py has disabled it
    program = Server(control, prepared_ahead=[programs.prepare_virtual]).serve()
    if program is not None:
        program()


if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    main(socket.socket(fileno=given["control"]))
    os._exit(0)
