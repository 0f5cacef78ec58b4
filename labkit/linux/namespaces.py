"""The namespaces of another process. Linux 5.8+."""

from __future__ import annotations

import os

from labkit.linux.libc import checked, libc

_KINDS = {
    "mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
    "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
"""Name in /proc -> the kernel's number."""


def enter(pid: int) -> None:
    """Move this process into all namespaces of process `pid`; only its later children enter that of PIDs.

    Its root and working directory are then the other process's root. If its own user has made the user namespace, it
    has all capabilities there. Raises `OSError`.
    """
    handle = os.pidfd_open(pid)
    try:
        others = sum(number for kind, number in _KINDS.items() if not _shared(kind, pid))
        checked(libc.setns(handle, others), f"entering the namespaces of process {pid}")
    finally:
        os.close(handle)


def _shared(kind: str, pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
