"""`without_namespaces.py COMMAND...`: run it where no namespace can be made, as in many containers."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_CALLS = {
    "x86_64": {"clone": 56, "unshare": 272, "clone3": 435},
    "aarch64": {"clone": 220, "unshare": 97, "clone3": 435},
}
_NEW = 0x7E020000
"""CLONE_NEWNS, CLONE_NEWCGROUP, and CLONE_NEWUTS to CLONE_NEWNET."""
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x50000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def main(command: list[str]) -> None:
    calls = _CALLS[platform.machine()]
    lines = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 5, 0, calls["clone3"]),
        (_EQUAL, 1, 0, calls["clone"]),
        (_EQUAL, 0, 2, calls["unshare"]),
        (_LOAD, 0, 0, 16),
        (_ANY_BIT, 2, 0, _NEW),
        (_RETURN, 0, 0, _ALLOW),
        # its flags lie in memory, invisible to filters; libc then uses clone
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    options = struct.pack("@HP", len(lines), ctypes.addressof(program))
    assert libc.prctl(_SECCOMP, _FILTER, options, 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
