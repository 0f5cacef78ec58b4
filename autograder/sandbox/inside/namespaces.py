"""New namespaces for a process, and their contents: mounts, /proc, the loopback network."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

_SHARED_SCRATCH = ("/tmp", "/dev/shm")
"""Scratch folders besides the home folder."""

_ESCAPED = re.compile(r"\\(\d{3})")
"""Escaped blank in mountinfo."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def leave_all(own_users: bool) -> None:
    """Move this process into new namespaces; the PID namespace applies only to children, the first of which is pid 1.

    own_users: also a user namespace, which an unprivileged user needs for the others. Raises `OSError`.
    """
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | _NEWCGROUP
    if own_users:
        _leave_with_users(flags)
    else:
        _check(_libc.unshare(flags), "namespaces")


def _leave_with_users(flags: int) -> None:
    """Unshare these and the user namespace, keeping the user and group, with all capabilities in the new ones."""
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(flags | _NEWUSER), "namespaces")
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as to:
            to.write(text)


def private_folders(home: str, scratch_bytes: int) -> None:
    """Give this process empty scratch folders that no other process sees. Needs no privileges. Raises `OSError`.

    They share one file system of `scratch_bytes`. The process is left with capabilities in its own user namespace,
    which it should drop.
    """
    _leave_with_users(_NEWNS)
    _scratch(home, scratch_bytes)
    for folder in (*_SHARED_SCRATCH, home):
        part = f"{home}/{os.path.basename(folder)}"
        os.mkdir(part)
        os.chmod(part, 0o1777)
        _mount_over(folder, part, "", _MS_BIND)
    os.chdir(home)


def furnish(home: str, scratch_bytes: int) -> None:
    """As the first process of new namespaces, set up private /proc, terminals and scratch folders, and loopback.

    Raises `OSError`.
    """
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    try:
        # hide processes that the reader may not inspect
        _mount("proc", "/proc", "proc", flags, "hidepid=ptraceable")
    except OSError:  # before Linux 5.8
        _mount("proc", "/proc", "proc", flags)
    _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for folder in (*_SHARED_SCRATCH, home):
        _scratch(folder, scratch_bytes)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _scratch(folder: str, nbytes: int) -> None:
    """Mount an empty folder in memory."""
    # a million empty files take few bytes, so inodes are limited too
    limits = f"size={nbytes},nr_inodes={max(1024, nbytes >> 12)},mode=1777"
    _mount_over(folder, "tmpfs", "tmpfs", _MS_NOSUID | _MS_NODEV, limits)


def _mount_over(folder: str, source: str, kind: str, flags: int, options: str = "") -> None:
    """Mount something on a folder and keep the mounts below it: Python itself may lie in /tmp."""
    kept = {path: os.open(path, os.O_PATH) for path in _mounted_below(folder)}
    _mount(source, folder, kind, flags, options)
    for path, descriptor in kept.items():
        source = f"/proc/self/fd/{descriptor}"
        if os.path.isdir(source):
            os.makedirs(path, mode=0o755, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            os.close(os.open(path, os.O_CREAT, 0o644))
        _mount(source, path, "", _MS_BIND | _MS_REC)
        os.close(descriptor)


def _mounted_below(folder: str) -> list[str]:
    """Return the outermost mount points below a folder."""
    found: list[str] = []
    for point in mount_points():
        if point.startswith(f"{folder}/") and not any(point.startswith(f"{other}/") for other in found):
            found.append(point)
    return found


def mount_points() -> list[str]:
    """Return all mount points that this process sees, sorted."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return sorted(_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in file)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    _check(done, f"mounting {kind or 'nothing'} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
