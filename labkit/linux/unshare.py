"""Namespaces and other surroundings that a process no longer shares with the one that it was forked from."""

from __future__ import annotations

import os

from labkit.linux.libc import checked, libc

FILE_SYSTEM_ATTRIBUTES = 0x200
"""Working directory, root and umask: a part of threads, not a namespace."""
MOUNTS, CGROUPS, HOST_NAME, IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
PIDS, NETWORK = 0x20000000, 0x40000000
_USERS = 0x10000000


def unshare(parts: int) -> None:
    """Give this thread parts of its own; `PIDS` only to its children, the first of which is pid 1. Raises `OSError`."""
    checked(libc.unshare(parts), "namespaces")


def unshare_with_users(parts: int) -> None:
    """Unshare these and the user namespace, keeping the user and group, with all capabilities in the new ones.

    An unprivileged user needs that for the others. Raises `OSError`.
    """
    uid, gid = os.getuid(), os.getgid()
    unshare(parts | _USERS)
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as to:
            to.write(text)
