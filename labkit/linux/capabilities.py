"""Capabilities: the parts of root's power. A process can drop them, never regain them."""

from __future__ import annotations

import struct

from labkit.linux.libc import checked, libc

_PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 24, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_VERSION = 0x20080522


def drop_all() -> None:
    """Drop all capabilities permanently. Raises `OSError`."""
    empty_bounding_set()
    clear()


def empty_bounding_set() -> None:
    """Keep this process, and everything it starts, from gaining capabilities; those that it has stay."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for capability in range(last + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for capabilities that the kernel does not have


def clear() -> None:
    """Drop the capabilities that this process has. Raises `OSError`."""
    checked(libc.capset(struct.pack("=Ii", _VERSION, 0), struct.pack("=6I", *[0] * 6)), "capabilities")
