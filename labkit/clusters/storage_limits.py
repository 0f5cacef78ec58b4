"""Which limit stops a program that cannot write: the kernel's error is the same for bytes and for files.

Messages of a rank can be checked by who knows the limits: see `checked`.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress

_NO_SPACE = re.compile(r"No space left on device|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+")
"""The last two are torch.save's."""
_HARDLY_ANY = 0.01
"""Share of a file system below which a write of torch's may have failed for lack of bytes."""
_WORDS = re.compile(
    r" \((?:(?P<folder>/[\w./-]{0,200}) is full: (?P<what>the (?P<files>[\d,]+) files and folders"
    r"|the (?P<mebibytes>[\d,.]+) MiB) that it may hold are there|a file may hold (?P<file>[\d,.]+) MiB)\)$"
)


def limit_met(error: BaseException) -> str:
    """Return `/tmp is full: the 65,536 files and folders that it may hold are there`; empty if no limit is known.

    Call it while what the program has written is still there.
    """
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return "" if limit == resource.RLIM_INFINITY else f"a file may hold {_mebibytes(limit)} MiB"
    with suppress(Exception):  # the learner's class, whose text may fail
        if _NO_SPACE.search(str(error)):
            return next(filter(None, map(_why_full, _folders(error))), "")
    return ""


def checked(message: str, scratch_bytes: int, scratch_files: int, file_bytes: int) -> str:
    """Return a rank's message, without the words of `limit_met` if they do not name these limits.

    A rank can write any number there, and a number can be one that the rank should keep to itself.
    """
    words = _WORDS.search(message)
    if words is None:
        return message
    stated = (words["files"], words["mebibytes"], words["file"])
    known = (f"{scratch_files:,}", _mebibytes(scratch_bytes), _mebibytes(file_bytes))
    is_right = any(number == limit for number, limit in zip(stated, known, strict=True))
    return message if is_right else message[: words.start()]


def limit_in(message: str) -> str:
    """Return the words of `limit_met` in a rank's message, without the folder; empty if there are none."""
    words = _WORDS.search(message)
    if words is None:
        return ""
    if words["file"]:
        return words[0].strip(" ()")
    return f"a folder is full: {words['what']} that it may hold are there"


def _folders(error: BaseException) -> Iterator[str]:
    """Yield the folders in which it may have written: an open file's name is not in the error."""
    filename = getattr(error, "filename", None)
    if isinstance(filename, str):
        yield os.path.dirname(os.path.abspath(filename))
        return
    # tempfile would try to write
    yield from (os.environ.get("TMPDIR") or "/tmp", "/dev/shm", os.path.expanduser("~"), os.getcwd())


def _why_full(folder: str) -> str:
    try:
        folder = _mounted(folder)
        about = os.statvfs(folder)
    except OSError:
        return ""
    if about.f_files and not about.f_favail:
        what = f"{about.f_files:,} files and folders"
    elif about.f_blocks and about.f_bavail <= _HARDLY_ANY * about.f_blocks:
        what = f"{_mebibytes(about.f_blocks * about.f_frsize)} MiB"
    else:
        return ""
    return f"{folder} is full: the {what} that it may hold are there"


def _mounted(folder: str) -> str:
    """Return the folder at which its file system begins."""
    device = os.stat(folder).st_dev
    while folder != "/" and os.stat(os.path.dirname(folder)).st_dev == device:
        folder = os.path.dirname(folder)
    return folder


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.4g}" if nbytes < 10_000 << 20 else f"{nbytes / (1 << 20):,.0f}"
