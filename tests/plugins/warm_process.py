"""`python warm_process.py DESCRIPTOR`: a zygote for the kernels of tests, listening on that socket; see kernels.py."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from labkit.linux import huge_pages, prctl

_OF_NOTEBOOKS = ("labkit.checks", "labkit.plots", "labkit.predict")
"""What most notebooks import besides; not matplotlib, which the lab prepares for ranks when they import it."""


def main(descriptor: int) -> None:
    """Serve; returns in forked processes, after their program."""
    prctl.die_with_parent(os.getppid())
    # a process that forks has one thread
    os.environ.update(dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    from labkit.forking.server import Server, share
    from labkit.zygote import preloading

    sys.path.append(str(Path(__file__).parent))  # clocks and announcements: last, so that they hide nothing
    preloading.load_for_kernels(_OF_NOTEBOOKS)
    share()
    for _ in huge_pages.collapse():
        pass  # at once: until it is done, others would fork from a heap in small pages
    with socket.socket(fileno=descriptor) as listening:
        program = Server(listening).serve()
    assert program is not None
    program()


if __name__ == "__main__":
    main(int(sys.argv[1]))
