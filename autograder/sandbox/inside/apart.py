"""Ranks that talk only to the scheduler outside are shut off from each other: a sum that needs no message is no sum.

Each has a scratch folder of its own, no sockets, no shared memory of System V; files, signals and the memory of others
are out of reach where the kernel has Landlock. What is left are covert channels, such as the time that a lock takes.
"""

from __future__ import annotations

import multiprocessing.process
import os
import tempfile
import traceback

from . import landlock, namespaces, seccomp

_RANK = 2
"""A rank is forked by a supervisor, and that by the first process of the sandbox."""


def keep_ranks_apart(home: str) -> None:
    """In the first process of a sandbox: shut off each rank that will be forked below it."""
    points = [path for path in namespaces.mount_points() if not path.startswith(("/tmp/", home, "/dev/shm"))]
    # Python itself may lie in /tmp
    points += [path for path in namespaces.mount_points() if path.startswith("/tmp/")]
    seen = [path for path in points if not path.startswith(("/dev", "/proc")) and path not in ("/", "/tmp")]
    written = [path for path in points if path.startswith("/dev/") and not path.startswith("/dev/pts")]
    ranks = _Ranks(seen, [*written, "/proc"])
    os.register_at_fork(after_in_child=ranks.forked)


class _Ranks:
    def __init__(self, seen: list[str], written: list[str]) -> None:
        self._seen, self._written = seen, written
        self._depth = 0
        self._filter = seccomp.for_this_machine(seccomp.no_meeting)
        self._has_landlock = landlock.version() > 0

    def forked(self) -> None:
        """This process has just been forked."""
        self._depth += 1
        if self._depth != _RANK:
            return
        try:
            self._shut_off()
        except BaseException:
            # an error here would only be printed, and the rank would run on
            traceback.print_exc()
            os._exit(1)

    def _shut_off(self) -> None:
        folder = tempfile.mkdtemp(prefix="rank-", dir="/tmp")
        os.environ.update(TMPDIR=folder, HOME=folder)
        tempfile.tempdir = None
        multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # no public way
        os.chdir(folder)
        _forget_shared_file()
        seccomp.install(self._filter)
        if self._has_landlock:
            landlock.restrict(self._seen, self._written, folder)


def _forget_shared_file() -> None:
    """What all processes of a run have open, for rendezvous on real ranks: here an empty device takes its number."""
    for name in os.listdir("/proc/self/fd"):
        try:
            shared = os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:shared")
        except OSError:  # the descriptor that listdir itself used
            continue
        if shared:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, int(name))
            os.close(null)
