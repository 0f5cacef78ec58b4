"""The mounts that this process sees."""

from __future__ import annotations

import ctypes
import os
import re

from labkit.linux.libc import checked, libc

NO_SETUID, NO_DEVICES, NO_PROGRAMS, REMOUNT, BIND, RECURSIVE, PRIVATE = 0x2, 0x4, 0x8, 0x20, 0x1000, 0x4000, 0x40000
"""Flags of `mount`."""
_ESCAPED = re.compile(r"\\(\d{3})")
"""Escaped blank in mountinfo."""
libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system of this kind, or `source` itself with `BIND`. Raises `OSError`."""
    done = libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    checked(done, f"mounting {kind or 'nothing'} on {target}")


def mount_over(folder: str, source: str, kind: str, flags: int, options: str = "") -> None:
    """Mount something on a folder and keep the mounts below it: Python itself may lie in /tmp."""
    kept = {path: os.open(path, os.O_PATH) for path in _mounted_below(folder)}
    mount(source, folder, kind, flags, options)
    for path, descriptor in kept.items():
        source = f"/proc/self/fd/{descriptor}"
        if os.path.isdir(source):
            os.makedirs(path, mode=0o755, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            os.close(os.open(path, os.O_CREAT, 0o644))
        mount(source, path, "", BIND | RECURSIVE)
        os.close(descriptor)


def kinds() -> dict[str, str]:
    """Return the kind of the file system at each mount point that this process sees: `{"/tmp": "tmpfs"}`."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        lines = [line.partition(" - ") for line in file]
    return {
        _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), before.split()[4]): after.split()[0]
        for before, _, after in lines
    }


def mount_points() -> list[str]:
    """Return all mount points that this process sees, sorted."""
    return sorted(kinds())


def _mounted_below(folder: str) -> list[str]:
    """Return the outermost mount points below a folder."""
    outermost: list[str] = []
    for point in mount_points():
        if point.startswith(f"{folder}/") and not any(point.startswith(f"{other}/") for other in outermost):
            outermost.append(point)
    return outermost
