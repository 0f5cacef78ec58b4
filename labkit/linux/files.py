"""Files that are replaced as a whole, since others may read them at any moment, and a disk may be full."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from pathlib import Path

from labkit.linux.libc import libc

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def replace_text(path: Path, text: str) -> None:
    """Replace a file as a whole: others read the old text or the new one. Raises OSError, e.g. on a full disk."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # a temporary file is its owner's alone
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def exchange(first: Path, second: Path) -> None:
    """Exchange two paths of one file system, of files or folders, in one step. Raises `OSError`.

    A file system without this (NFS) gets three renames, undone if one of them fails.
    """
    paths = os.fsencode(first), os.fsencode(second)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise OSError(number, f"exchange of {first} and {second}: {os.strerror(number)}")
    aside = Path(tempfile.mkdtemp(prefix=f".{first.name}.", dir=first.parent))
    try:
        first.rename(aside / first.name)
        try:
            second.rename(first)
        except BaseException:
            (aside / first.name).rename(first)
            raise
        (aside / first.name).rename(second)
    finally:
        aside.rmdir()
