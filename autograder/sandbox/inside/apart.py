"""Isolation of ranks from each other except by counted messages: a sum computed without messages is no all-reduce.

Each rank has its own `/tmp`, `/dev/shm` and home and no System V shared memory; where the kernel has Landlock, files,
signals and memory of others are out of reach. Virtual ranks communicate only with the scheduler outside and have no
sockets; real ranks have those of the sandbox's network. Covert channels remain, such as the timing of a lock.
"""

from __future__ import annotations

import multiprocessing.process
import os
import tempfile
import traceback

from autograder.sandbox.inside import namespaces, seccomp
from autograder.sandbox.inside.order import Order
from labkit.linux import capabilities, landlock, mounts
from labkit.linux.descriptors import open_descriptors

_RANK = 2
"""Fork depth of a rank: the sandbox's first process forks a supervisor, which forks the rank."""


def keep_ranks_apart(order: Order) -> str:
    """In a sandbox's first process: isolate each rank that will be forked below it.

    Returns why ranks cannot have their own file systems here; empty if they can. Otherwise each rank gets a folder in
    the sandbox's `/tmp`, and sees how full that is.
    """
    home = order.home
    points = [path for path in mounts.mount_points() if not path.startswith(("/tmp/", home, "/dev/shm"))]
    # Python itself may lie in /tmp
    points += [path for path in mounts.mount_points() if path.startswith("/tmp/")]
    seen = [path for path in points if not path.startswith(("/dev", "/proc")) and path not in ("/", "/tmp")]
    written = [path for path in points if path.startswith("/dev/") and not path.startswith("/dev/pts")]
    problem = _tried(order)
    ranks = _Ranks(order, seen, [*written, "/proc"], has_private_folders=not problem)
    os.register_at_fork(after_in_child=ranks.forked)
    return problem


def _tried(order: Order) -> str:
    """Return the error from giving a child process private folders; empty if it works."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            namespaces.private_folders(order.home, order.scratch_bytes, order.scratch_files)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as errors:
        problem = errors.read()
    os.waitpid(pid, 0)
    return problem


class _Ranks:
    def __init__(self, order: Order, seen: list[str], written: list[str], *, has_private_folders: bool) -> None:
        self._order, self._seen, self._written = order, seen, written
        self._has_private_folders = has_private_folders
        self._depth = 0
        forbids = seccomp.no_meeting_but_on_the_network if order.network else seccomp.no_meeting
        self._filter = seccomp.for_this_machine(forbids)
        self._has_landlock = landlock.version() > 0

    def forked(self) -> None:
        """Called in a process that has just been forked."""
        self._depth += 1
        if self._depth != _RANK:
            return
        try:
            self._shut_off()
        except BaseException:
            # an exception here would only be printed, and the rank would run on
            traceback.print_exc()
            os._exit(1)

    def _shut_off(self) -> None:
        own = self._private_folders() if self._has_private_folders else [_folder_in_shared_one()]
        _forget_shared_file()
        seccomp.install(self._filter)
        if self._has_landlock:
            landlock.restrict(self._seen, self._written, own, network=self._order.network)

    def _private_folders(self) -> list[str]:
        order = self._order
        namespaces.private_folders(order.home, order.scratch_bytes, order.scratch_files)
        capabilities.drop_all()
        # the supervisor's is not visible here; multiprocessing makes one on demand
        multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]  # no public way
        return ["/tmp", "/dev/shm", self._order.home]


def _folder_in_shared_one() -> str:
    folder = tempfile.mkdtemp(prefix="rank-", dir="/tmp")
    os.environ.update(TMPDIR=folder, HOME=folder)
    tempfile.tempdir = None
    multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # no public way
    os.chdir(folder)
    return folder


def _forget_shared_file() -> None:
    """Replace the file that all processes of a run have open, for rendezvous, by an empty device under its number."""
    for descriptor in open_descriptors():
        try:
            shared = os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:shared")
        except OSError:  # the one through which they were listed
            continue
        if shared:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)
            os.close(null)
