"""The nursery as the main process holds it. Imports nothing heavy, so that it can be the first thing that is done."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile


class Nursery:
    """A process that forks workers; see `nursery.py`. `control` talks to it."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "autograder.batch.nursery", str(os.getpid()), str(theirs.fileno())],
                # found as here, however this process finds its modules
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for this process to act upon
            )

    def end(self) -> None:
        """End it and its workers: those that are idle close their sandboxes first. Again is no error."""
        self.control.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The end of what it and its workers printed."""
        handle = self._said.fileno()
        # not by seeking: they write where this process reads
        return os.pread(handle, 2000, max(0, os.fstat(handle).st_size - 2000)).decode(errors="replace").strip()
