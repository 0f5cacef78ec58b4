"""Attributes of this process: what happens when its parent ends, who its orphans belong to, what it may gain."""

from __future__ import annotations

import os
import signal

from labkit.linux.libc import checked, libc

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 15, 36, 38


def signal_when_parent_ends(signal_number: int = signal.SIGKILL) -> None:
    """Make the kernel send `signal_number` to this process when the thread that forked it ends. 0: no signal."""
    libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Make the kernel send `signal_number` to this process when `parent`, which forked it, ends."""
    signal_when_parent_ends(signal_number)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal_number)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    signal_when_parent_ends(0)


def adopt_orphans() -> None:
    """Make grandchildren whose parents end children of this process, so that none can escape."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def gain_no_privileges() -> None:
    """Keep this process, and everything it starts, from gaining privileges by executing a file. Raises `OSError`."""
    checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def set_dumpable(dumpable: bool) -> None:
    """Set whether others of the same user may read this process's memory and open files."""
    libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def set_name(name: str) -> None:
    """Set the name of this process as `ps` and `top` show it: its first 15 characters."""
    libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
