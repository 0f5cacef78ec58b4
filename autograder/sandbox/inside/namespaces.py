"""New namespaces for a process, and their contents: mounts, /proc, the loopback network."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable

from labkit.linux import mounts
from labkit.linux import unshare as parts
from labkit.linux.unshare import unshare, unshare_with_users

_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

SHARED_SCRATCH = ("/tmp", "/dev/shm")
"""Scratch folders besides the home folder."""


def leave_all(own_users: bool) -> None:
    """Move this process into new namespaces; the PID namespace applies only to children, the first of which is pid 1.

    own_users: also a user namespace, which an unprivileged user needs for the others. Raises `OSError`.
    """
    all_of_them = parts.MOUNTS | parts.HOST_NAME | parts.IPC | parts.PIDS | parts.NETWORK | parts.CGROUPS
    if own_users:
        unshare_with_users(all_of_them)
    else:
        unshare(all_of_them)


def private_folders(home: str, scratch_bytes: int, scratch_files: int) -> None:
    """Give this process empty scratch folders that no other process sees. Needs no privileges. Raises `OSError`.

    They share one file system of `scratch_bytes`, for `scratch_files` files and folders. The process is left with
    capabilities in its own user namespace, which it should drop.
    """
    unshare_with_users(parts.MOUNTS)
    _scratch(home, scratch_bytes, scratch_files)
    for folder in (*SHARED_SCRATCH, home):
        part = f"{home}/{os.path.basename(folder)}"
        os.mkdir(part)
        os.chmod(part, 0o1777)
        mounts.mount_over(folder, part, "", mounts.BIND)
    os.chdir(home)


def furnish(home: str, scratch_bytes: int, scratch_files: int) -> None:
    """As the first process of new namespaces, set up private /proc, terminals and scratch folders, and loopback.

    Raises `OSError`.
    """
    mounts.mount("none", "/", "", mounts.RECURSIVE | mounts.PRIVATE)
    flags = mounts.NO_SETUID | mounts.NO_DEVICES | mounts.NO_PROGRAMS
    try:
        # hide processes that the reader may not inspect
        mounts.mount("proc", "/proc", "proc", flags, "hidepid=ptraceable")
    except OSError:  # before Linux 5.8
        mounts.mount("proc", "/proc", "proc", flags)
    terminals = mounts.NO_SETUID | mounts.NO_PROGRAMS
    mounts.mount("devpts", "/dev/pts", "devpts", terminals, "newinstance,ptmxmode=0666,mode=620")
    for folder in (*SHARED_SCRATCH, home):
        _scratch(folder, scratch_bytes, scratch_files)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def limit_files(folders: Iterable[str], files: int) -> str:
    """Limit the number of files and folders in folders in memory that bubblewrap has made, which limits bytes alone.

    Returns why that does not work here; otherwise an empty string. Only root's can: an ordinary user's bubblewrap makes
    them in a user namespace that it leaves.
    """
    kinds = mounts.kinds()
    try:
        for folder in folders:
            if kinds.get(folder) == "tmpfs":  # another file system is not this sandbox's own
                flags = mounts.NO_SETUID | mounts.NO_DEVICES
                mounts.mount("tmpfs", folder, "tmpfs", mounts.REMOUNT | flags, f"nr_inodes={files}")
    except OSError as error:
        return str(error)
    return ""


def _scratch(folder: str, nbytes: int, files: int) -> None:
    """Mount an empty folder in memory."""
    # a million empty files take few bytes, so inodes are limited too
    limits = f"size={nbytes},nr_inodes={files},mode=1777"
    mounts.mount_over(folder, "tmpfs", "tmpfs", mounts.NO_SETUID | mounts.NO_DEVICES, limits)
