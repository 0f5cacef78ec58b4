"""The template: has torch imported, and forks a sandbox whenever the grader asks for one.

It runs nothing of any submission, and no sandbox holds anything through which it could be reached. It ends when the
grader does; bubblewrap's first process then takes every sandbox with it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from typing import Any

from labkit.clusters.torch_versions import rehearse_groups
from labkit.clusters.warm import huge_pages, processes
from labkit.clusters.warm.fresh import entry_function, preparation

from . import room
from .order import PREPARED, Order

ENTRIES = ("labkit.clusters.virtual.host:main", "labkit.clusters.local.rank:main")
"""What runs begin with, imported once for all sandboxes."""


def main(control: socket.socket) -> None:
    """Import, prepare, and fork a sandbox for every order that arrives; return when the grader is gone."""
    for entry in (*ENTRIES, PREPARED):
        entry_function(entry)
    rehearse_groups()
    _settle()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is to be learnt from how they end
    _serve(control, {PREPARED: _prepared(PREPARED, control)})


def _prepared(entry: str, control: socket.socket) -> socket.socket:
    """Another template, prepared for `entry`; returns where it takes orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        try:
            processes.die_with_parent(parent)
            control.close()
            ours.close()
            prepare = preparation(entry)
            if prepare is not None:
                prepare()
            _settle()
            _serve(theirs, {})
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _settle() -> None:
    """What stands now is the same for all forks: it is neither looked at by the collector nor in small pages."""
    gc.collect()
    gc.freeze()
    for _ in huge_pages.collapse():
        pass


def _serve(control: socket.socket, others: dict[str, socket.socket]) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 65536, 3)
        if not message:
            return
        order = Order.loads(message.decode())
        if order.prepared in others:
            # should it have been killed, the grader hears of it, and starts all anew
            socket.send_fds(others[order.prepared], [message], descriptors)
        else:
            room.fork(order, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    main(socket.socket(fileno=given["control"]))
    os._exit(0)
