"""`python warm_process.py PATH`: a zygote that imports nothing before the first request; see kernels.py."""

from __future__ import annotations

import os
import select
import socket
import sys

from labkit.linux import prctl

_OF_NOTEBOOKS = ("labkit.checks", "labkit.plots", "labkit.predict", "matplotlib.pyplot")
"""What most notebooks import besides."""


def main(path: str) -> None:
    """Serve; returns in forked processes, after their program."""
    prctl.die_with_parent(os.getppid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(128)
        select.select([listening], [], [])
        # most runs of pytest need no kernel. A process that forks has one thread
        os.environ.update(dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
        from labkit.linux import huge_pages
        from labkit.zygote import preloading, server

        preloading.load_for_kernels(_OF_NOTEBOOKS)
        server.share()
        for _ in huge_pages.collapse():
            pass
        program = server.serve(listening)
    program()


if __name__ == "__main__":
    main(sys.argv[1])
