"""The template: has torch imported, and forks a sandbox whenever the grader asks for one.

It runs nothing of any submission, and no sandbox holds anything through which it could be reached. It ends when the
grader does; bubblewrap's first process then takes every sandbox with it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from typing import Any

from labkit.clusters.torch_versions import rehearse_groups
from labkit.clusters.warm import huge_pages
from labkit.clusters.warm.fresh import entry_function

from . import room
from .order import Order

ENTRIES = (
    "labkit.clusters.virtual.remote:main",
    "labkit.clusters.virtual.host:main",
    "labkit.clusters.local.rank:main",
)
"""What judged calls begin with, imported once for all sandboxes."""


def serve(control: socket.socket) -> None:
    """Fork a sandbox for every order that arrives; return when the grader is gone."""
    for entry in ENTRIES:
        entry_function(entry)
    rehearse_groups()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is to be learnt from how they end
    collapsing = huge_pages.collapse()
    while True:
        for _ in collapsing:
            if select.select([control], [], [], 0)[0]:
                break
        message, descriptors, _, _ = socket.recv_fds(control, 65536, 3)
        if not message:
            return
        room.fork(Order.loads(message.decode()), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    serve(socket.socket(fileno=given["control"]))
    os._exit(0)
