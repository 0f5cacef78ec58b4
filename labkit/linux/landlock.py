"""Landlock: unprivileged restriction of access to files, signals and other processes' memory. Linux 5.13+.

What a restricted process may still do is listed; later kernels can restrict more (scopes: 6.12).
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable

from labkit.linux.libc import checked, libc

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL = (1 << 16) - 1
_ANY_TCP, _ANY_SCOPE = 3, 3
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE


def version() -> int:
    """Return the kernel's Landlock version; 0 if it has none."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _VERSION_FLAG)))


def restrict(seen: Iterable[str], written: Iterable[str], own: Iterable[str], *, network: bool) -> None:
    """Restrict this process, and everything it starts, to these paths. Raises `OSError`.

    seen: read only; written: devices and /proc; own: folders with full access; network: TCP stays allowed. Where the
    kernel supports it, processes outside are also unreachable by signals, abstract sockets and debugging.
    """
    kernel_version = version()
    handled = _ALL_BY_VERSION.get(kernel_version, _ALL)
    size = 8 if kernel_version < 4 else 16 if kernel_version < 6 else 24
    attributes = struct.pack("=3Q", handled, 0 if network else _ANY_TCP, _ANY_SCOPE)[:size]
    rules = checked(libc.syscall(_CREATE, attributes, size, 0), "Landlock")
    _allow(rules, "/", _READ_DIR)
    for path in seen:
        _allow(rules, path, (_EXECUTE | _READ | _READ_DIR) & handled)
    for path in written:
        _allow(rules, path, (_READ | _WRITE | _READ_DIR | _TRUNCATE) & handled)
    for path in own:
        _allow(rules, path, handled)
    checked(libc.syscall(_RESTRICT, rules, 0), "Landlock")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        checked(libc.syscall(_ADD, rules, _PATH_BENEATH, rule, 0), f"Landlock, {path}")
        os.close(descriptor)
