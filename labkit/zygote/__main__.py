"""`python -m labkit.zygote PATH`: a zygote that listens on a socket at PATH, within reach of its own user only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from labkit.forking.server import Server, listen, share
from labkit.linux import huge_pages
from labkit.zygote import preloading


def main(path: Path) -> None:
    """Serve; returns in forked processes, after their program."""
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    listening = listen(str(path))  # at once: who connects now waits for the imports
    os.umask(before)
    preloading.load()
    share()
    for _ in huge_pages.collapse():
        pass  # at once: until it is done, others would fork from a heap in small pages
    program = Server(listening).serve()
    assert program is not None  # a server that listens does not end by itself
    program()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
