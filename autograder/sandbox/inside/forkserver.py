"""The sandboxes' forkserver: imports torch, and forks a sandbox on each request of the grader.

It runs nothing of any submission, and no sandbox holds anything through which it could be reached. It ends with the
grader; bubblewrap's first process then ends every sandbox with it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from typing import Any

from autograder.sandbox.inside import sandbox_process
from autograder.sandbox.inside.order import Order
from labkit.clusters.forkserver.entry import Entry
from labkit.clusters.local import rank as local_rank
from labkit.clusters.virtual.hosts.entries import HOST, REMOTE
from labkit.linux import huge_pages
from labkit.linux.prctl import die_with_parent
from labkit.torch_versions import early_imports
from labkit.torch_versions.prefork_warmup import warm_up_groups
from labkit.transport import datagrams

ENTRIES = (HOST, local_rank.ENTRY, REMOTE)
"""Entry points of runs; what they need is imported once for all sandboxes."""


def main(control: socket.socket) -> None:
    """Import, prepare, and fork a sandbox for every order; return when the grader is gone."""
    for entry in ENTRIES:
        entry.import_all()
    list(early_imports.load())
    warm_up_groups()
    _settle()
    gc.enable()  # launch.py has disabled it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exit statuses are not needed
    _serve(control, _prepared(REMOTE, control))


def _prepared(entry: Entry, control: socket.socket) -> socket.socket:
    """Fork another forkserver, prepared for `entry`; return the socket on which it takes orders."""
    ours, theirs = datagrams.pair()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            die_with_parent(parent)
            control.close()
            ours.close()
            if entry.prepare is not None:
                entry.prepare()
            _settle()
            _serve(theirs, None)
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _settle() -> None:
    """Freeze what exists now, shared by all forks: exclude it from garbage collection and use large pages."""
    gc.collect()
    gc.freeze()
    for _ in huge_pages.collapse():
        pass


def _serve(control: socket.socket, prepared: socket.socket | None) -> None:
    """Fork a sandbox for every order. prepared: where to pass on the orders for virtual ranks, if anywhere."""
    while True:
        fields, descriptors = datagrams.receive(control, 3)
        if fields is None:
            return
        order = Order(**fields)
        if order.virtual and prepared is not None:
            # if it was killed, the grader notices and restarts everything
            datagrams.send(prepared, fields, descriptors)
        else:
            sandbox_process.fork(order, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    main(socket.socket(fileno=given["control"]))
    os._exit(0)
