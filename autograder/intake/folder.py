"""A submission's folder, read so that nothing in it can lead outside, block, or cost more than the limits allow.

Links are not followed, anywhere in a path; files with a second name (hard links) and special files are not opened. All
is reached from one open folder, so exchanging a part of the path in the meantime changes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from autograder.intake.limits import IntakeFailed, Limits, NotTaken, NotYet

STAMPS = ("timestamp.txt", "submission_secret.txt")
"""What nbgrader puts beside the notebooks."""

_CHUNK = 1 << 20
_LISTED = 100_000
"""Names that are looked at to find those that matter."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class Found:
    """Something in a submission's folder."""

    path: str
    """Relative to the folder."""
    status: os.stat_result

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The folder at `path`, open. Raises NotTaken when there is something else, IntakeFailed when it is not ours."""
    try:
        status = os.stat(path, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise NotTaken("it is not a folder")
        handle = os.open(path, _DIRECTORY)
    except OSError as error:
        raise _told(error, None, f"{path}") from None
    try:
        yield handle
    finally:
        os.close(handle)


def printable(name: str) -> str:
    """A name from a submission without what a terminal or a page would take for more than letters."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def shown(name: str) -> str:
    """A name from a submission, fit for a sentence."""
    clean = printable(name)
    return clean if len(clean) <= 60 else f"{clean[:57]}..."


def is_odd(name: str) -> bool:
    """Is this a name that no file of ours should get: control characters, no UTF-8, an option, absurdly long?"""
    return not name.isprintable() or name.startswith("-") or len(name.encode("utf-8", "replace")) > 200


def walk(folder: int, limits: Limits) -> tuple[list[Found], list[str]]:
    """All files and other things but folders, without what is hidden; and what was left out, in words."""
    walk = _Walk(limits)
    walk.into(folder, "")
    return walk.found, list(dict.fromkeys(walk.notes))


class _Walk:
    def __init__(self, limits: Limits) -> None:
        self.found: list[Found] = []
        self.notes: list[str] = []
        self._limits = limits
        self._left = limits.files
        self._listed = _LISTED

    def into(self, folder: int, path: str) -> None:
        """Go through an open folder; path: its own, with a slash at the end."""
        with os.scandir(folder) as entries:
            names = sorted((entry.name for entry in islice(entries, self._listed)), key=_rank)
        self._listed -= len(names)
        if len(names) > self._left or not self._listed:
            self.notes.append(f"Only {self._limits.files:,} files and folders of the submission were looked at.")
            names = names[: self._left]
        self._left -= len(names)
        for name in names:
            if not name.startswith("."):
                self._look_at(folder, name, f"{path}{name}")

    def _look_at(self, folder: int, name: str, path: str) -> None:
        status = None
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self.found.append(Found(path, status))
                return
            if path.count("/") + 1 >= self._limits.depth:
                self.notes.append(f"Folders more than {self._limits.depth} deep were not looked into.")
                return
            if name.endswith(".ipynb"):
                self.notes.append(f"`{shown(path)}` is a folder, not a notebook.")
            inner = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                self.into(inner, f"{path}/")
            finally:
                os.close(inner)
        except OSError as error:
            problem = _told(error, status, path)
            if isinstance(problem, IntakeFailed):
                raise problem from None
            self.notes.append(f"`{shown(path)}` was left out: {problem}.")


def _rank(name: str) -> tuple[bool, str]:
    """Notebooks and stamps first: they must not be what is beyond the limits."""
    return not (name.endswith(".ipynb") or name in STAMPS), name


def read(folder: int, one: Found, limit: int) -> bytes:
    """What is in a file; see `chunks`."""
    return b"".join(chunks(folder, one, limit))


def read_stamp(folder: int, name: str) -> str:
    """The text of one of nbgrader's `STAMPS`; empty when it has none, or is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return read(folder, Found(name, status), 1000).decode("ascii", "replace").strip()
    except (OSError, NotTaken, NotYet):
        return ""


def content_hash(folder: int, found: Iterable[Found], limits: Limits) -> str:
    """SHA-256, in hex, over all names and contents but nbgrader's two stamps; of what cannot be read, over why."""
    total = hashlib.sha256()
    left = limits.total_bytes
    for one in found:
        if one.path in STAMPS:
            continue
        digest = hashlib.sha256()
        try:
            for chunk in chunks(folder, one, left):
                digest.update(chunk)
                left -= len(chunk)
        except NotTaken as problem:
            digest.update(str(problem).encode())
        name = one.path.encode("utf-8", "surrogateescape")
        total.update(b"%d:%s%s" % (len(name), name, digest.digest()))
    return total.hexdigest()


def chunks(folder: int, one: Found, limit: int) -> Iterator[bytes]:
    """What is in a file, piece by piece. Raises NotTaken for what is no plain file of at most `limit` bytes.

    Raises NotYet when the file is not as it was found, at the beginning or at the end: then nothing of it counts.
    """
    *parents, name = one.path.split("/")
    handles: list[int] = []
    try:
        for parent in parents:
            folder = os.open(parent, _DIRECTORY, dir_fd=folder)
            handles.append(folder)
        _check(one.status, limit)
        handle = os.open(name, _FILE, dir_fd=folder)
        handles.append(handle)
        _check(os.fstat(handle), limit)
        _compare(one, handle)
        left = one.status.st_size
        # one byte more than there should be, to notice a file that grows
        while chunk := os.read(handle, min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left:
            raise NotYet(f"`{shown(one.path)}` changed while it was read")
        _compare(one, handle)
    except OSError as error:
        raise _told(error, one.status, one.path) from None
    finally:
        for handle in reversed(handles):
            os.close(handle)


def _compare(one: Found, handle: int) -> None:
    """Is the open file the one that was found, as it was then? Its owner, too, was looked at then."""
    now, then = os.fstat(handle), one.status
    if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (
        *(then.st_dev, then.st_ino, then.st_size),
        *(then.st_mtime_ns, then.st_ctime_ns),
    ):
        raise NotYet(f"`{shown(one.path)}` changed while it was read")


def _check(status: os.stat_result, limit: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotTaken("it is a link")
    if not stat.S_ISREG(status.st_mode):
        raise NotTaken("it is not a regular file")
    if status.st_nlink > 1:
        raise NotTaken("it is a hard link: the file has another name elsewhere")
    if status.st_size > limit:
        raise NotTaken(f"it is larger than {limit / 1e6:.3g} MB")


def _told(error: OSError, status: os.stat_result | None, path: str) -> IntakeFailed | NotTaken:
    """Whose fault it is that something cannot be read."""
    if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR, errno.EISDIR):
        return NotTaken("it is not a regular file")
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return NotYet(f"{shown(path)} is not there: {error.strerror}")
    refused = error.errno in (errno.EACCES, errno.EPERM)
    if refused and status is not None:
        needed = stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(status.st_mode) else 0)
        if status.st_mode & needed != needed:
            return NotTaken("its permissions do not let anybody read it")
    if refused:
        return NotYet(f"{shown(path)}: {error.strerror}")
    return IntakeFailed(f"{shown(path)}: {error.strerror}")
