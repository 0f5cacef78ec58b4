"""The forkserver of ranks: has torch imported, and does nothing but fork a supervisor for each run.

The client starts it through launch.py, with the number of a descriptor; it ends when the client does, and, where the
site asks for it, when it is idle: the client then starts another one.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NoReturn

from labkit.clusters.forkserver import scratch
from labkit.forking.request import Load
from labkit.forking.server import Server, share
from labkit.hub import idle_minutes
from labkit.linux import huge_pages, prctl
from labkit.linux.clock import Clock
from labkit.torch_versions import early_imports
from labkit.torch_versions.prefork_warmup import warm_up_groups


def serve(
    control: socket.socket,
    meanwhile: Iterable[object] = (),
    prepared: Load | None = None,
    idle_seconds: float | None = None,
    clock: Clock = time.monotonic,
) -> NoReturn:
    """Fork a supervisor for every request; end when the client is gone. See `Server` for the arguments."""
    program = Server(
        control,
        meanwhile=meanwhile,
        prepared=prepared,
        idle_seconds=idle_seconds,
        on_killed=scratch.remove_that_of,
        clock=clock,
    ).serve()
    if program is not None:
        program()
    os._exit(0)  # at once: a client that waits for the end should not wait for torch to be taken apart


def idle_work(import_early: bool) -> Iterator[None]:
    """Make later runs start faster, in steps. import_early: also import `early_imports`, which hold 70 MB."""
    if import_early:
        yield from early_imports.load()
    share()
    yield from huge_pages.collapse()


def main(control: int) -> NoReturn:
    """Be a forkserver that a zygote has forked, warm already. control: the descriptor of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # its heap is shared with the zygote's other forks: huge pages of its own would be another copy
    _serve_one_client(control, [])


def _serve_one_client(control: int, work: Iterable[object]) -> NoReturn:
    serve(socket.socket(fileno=control), work, idle_seconds=60 * idle_minutes.allowed() or None)


if __name__ == "__main__":
    warm_up_groups()
    gc.enable()  # launch.py has disabled it
    # from here on the socket shows the client's end: the kernel would mistake the end of one thread for it
    prctl.outlive_parent()
    _serve_one_client(int(sys.argv[1]), idle_work(import_early=not idle_minutes.allowed()))
