"""Memory that this process has mapped, and shares with those that it was forked from."""

from __future__ import annotations

import ctypes
import mmap

from labkit.linux.libc import libc

_MAP_FIXED = 0x10
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def leave(memory: memoryview, start: int, nbytes: int) -> None:
    """Put empty memory in the place of whole pages of a shared mapping, for this process only."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
