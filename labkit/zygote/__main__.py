"""`python -m labkit.zygote PATH`: a zygote that listens on a socket at PATH, within reach of its own user only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from labkit.linux import huge_pages
from labkit.zygote import preloading, server


def main(path: Path) -> None:
    """Serve; returns in forked processes, after their program."""
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    listening = server.listen(str(path))  # at once: who connects now waits for the imports
    os.umask(before)
    preloading.load()
    server.share()
    for _ in huge_pages.collapse():
        pass  # at once: until it is done, others would fork from a heap in small pages
    program = server.serve(listening)
    program()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
