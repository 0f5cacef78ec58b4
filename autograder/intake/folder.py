"""Safe reading of a submission's folder: nothing in it can lead outside, block, or exceed the limits.

Links are never followed in any part of a path; hard-linked and special files are not opened. Everything is reached from
one open folder, so replacing a part of the path in the meantime has no effect.
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

from autograder.intake.limits import EntryRefused, FilesChanged, IntakeFailed, Limits
from labkit.text_files import UnreadableText, decoded

STAMPS = ("timestamp.txt", "submission_secret.txt")
"""Files that nbgrader puts beside the notebooks."""

_CHUNK = 1 << 20
_LISTED = 100_000
"""Maximum names listed to find those that matter."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class FolderEntry:
    """A file or other entry in a submission's folder."""

    path: str
    """Path relative to the folder."""
    status: os.stat_result

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open the folder at `path`. Raises EntryRefused if it is not a folder, IntakeFailed for infrastructure errors."""
    try:
        status = os.stat(path, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise EntryRefused("it is not a folder")
        handle = os.open(path, _DIRECTORY)
    except OSError as error:
        raise _error_for(error, None, f"{path}") from None
    try:
        yield handle
    finally:
        os.close(handle)


def printable(name: str) -> str:
    """Return a submission's name without characters that a terminal or a page would interpret."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def shown(name: str) -> str:
    """Return a submission's name in a form that fits into a sentence."""
    clean = printable(name)
    return clean if len(clean) <= 60 else f"{clean[:57]}..."


def is_odd(name: str) -> bool:
    """Return whether a name is unsuitable for our files: control characters, invalid UTF-8, option-like, overlong."""
    return not name.isprintable() or name.startswith("-") or len(name.encode("utf-8", "replace")) > 200


def walk(folder: int, limits: Limits) -> tuple[list[FolderEntry], list[str]]:
    """Return all visible entries except folders, and descriptions of what was left out."""
    walk = _Walk(limits)
    walk.into(folder, "")
    return walk.found, list(dict.fromkeys(walk.notes))


class _Walk:
    def __init__(self, limits: Limits) -> None:
        self.found: list[FolderEntry] = []
        self.notes: list[str] = []
        self._limits = limits
        self._left = limits.files
        self._listed = _LISTED

    def into(self, folder: int, path: str) -> None:
        """Walk an open folder; path: its path, with a slash at the end."""
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
                self.found.append(FolderEntry(path, status))
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
            problem = _error_for(error, status, path)
            if isinstance(problem, IntakeFailed):
                raise problem from None
            self.notes.append(f"`{shown(path)}` was left out: {problem}.")


def _rank(name: str) -> tuple[bool, str]:
    """Return a sort key: notebooks and stamps first, so that they are not cut off by the limits."""
    return not (name.endswith(".ipynb") or name in STAMPS), name


def read(folder: int, one: FolderEntry, limit: int) -> bytes:
    """Return the contents of a file; see `chunks`."""
    return b"".join(chunks(folder, one, limit))


def read_stamp(folder: int, name: str) -> str:
    """Return the text of one of nbgrader's `STAMPS`; empty if it is missing, empty, not a file or not text."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return decoded(read(folder, FolderEntry(name, status), 1000)).strip()
    except (OSError, EntryRefused, FilesChanged, UnreadableText):
        return ""


def content_hash(folder: int, found: Iterable[FolderEntry], limits: Limits) -> str:
    """Return the SHA-256, in hex, over all names and contents except nbgrader's two stamps.

    For an unreadable file, the reason is hashed instead.
    """
    total = hashlib.sha256()
    left = limits.total_bytes
    for entry in found:
        if entry.path in STAMPS:
            continue
        digest = hashlib.sha256()
        try:
            for chunk in chunks(folder, entry, left):
                digest.update(chunk)
                left -= len(chunk)
        except EntryRefused as problem:
            digest.update(str(problem).encode())
        name = entry.path.encode("utf-8", "surrogateescape")
        total.update(b"%d:%s%s" % (len(name), name, digest.digest()))
    return total.hexdigest()


def chunks(folder: int, one: FolderEntry, limit: int) -> Iterator[bytes]:
    """Yield the contents of a file in chunks. Raises EntryRefused unless it is a plain file of at most `limit` bytes.

    Raises FilesChanged when the file has changed since it was found, before or after reading: then none of it counts.
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
        # one byte more than expected, to notice a file that grows
        while chunk := os.read(handle, min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left:
            raise FilesChanged(f"`{shown(one.path)}` changed while it was read")
        _compare(one, handle)
    except OSError as error:
        raise _error_for(error, one.status, one.path) from None
    finally:
        for handle in reversed(handles):
            os.close(handle)


def _compare(entry: FolderEntry, handle: int) -> None:
    """Check that the open file is the one that was found, unchanged; its owner was checked then."""
    now, then = os.fstat(handle), entry.status
    if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (
        *(then.st_dev, then.st_ino, then.st_size),
        *(then.st_mtime_ns, then.st_ctime_ns),
    ):
        raise FilesChanged(f"`{shown(entry.path)}` changed while it was read")


def _check(status: os.stat_result, limit: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise EntryRefused("it is a link")
    if not stat.S_ISREG(status.st_mode):
        raise EntryRefused("it is not a regular file")
    if status.st_nlink > 1:
        raise EntryRefused("it is a hard link: the file has another name elsewhere")
    if status.st_size > limit:
        raise EntryRefused(f"it is larger than {limit / 1e6:.3g} MB")


def _error_for(error: OSError, status: os.stat_result | None, path: str) -> IntakeFailed | EntryRefused:
    """Return the error to raise when something cannot be read: the learner's fault or the infrastructure's."""
    if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR, errno.EISDIR):
        return EntryRefused("it is not a regular file")
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return FilesChanged(f"{shown(path)} is not there: {error.strerror}")
    refused = error.errno in (errno.EACCES, errno.EPERM)
    if refused and status is not None:
        needed = stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(status.st_mode) else 0)
        if status.st_mode & needed != needed:
            return EntryRefused("its permissions do not let anybody read it")
    if refused:
        return FilesChanged(f"{shown(path)}: {error.strerror}")
    return IntakeFailed(f"{shown(path)}: {error.strerror}")
