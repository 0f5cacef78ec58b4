"""Storage of checkpoints: the operations on files whose order decides what survives a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from labkit.clusters.device import node_storage
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError

LOCK = "writer.lock"


class Hole:
    """Bytes without content: those of a fake tensor, whose file has the right size."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


Part = bytes | bytearray | memoryview | Hole


class Storage:
    """Files and folders below a root; paths are relative to it, with slashes. Each operation raises OSError.

    What is written may be lost in a power failure until it is synced: the content of a file by `sync(file)`, the names
    in a folder, also those that `rename` and `remove` change, by `sync(folder)`.
    """

    def make_folder(self, path: str) -> None:
        """Make an empty folder; one of that name is removed before. Raises `CheckpointError` if another job writes."""
        raise NotImplementedError

    def write(self, path: str, parts: Iterable[Part]) -> None:
        """Write a file: the parts, one after another."""
        raise NotImplementedError

    def sync(self, path: str) -> None:
        """Wait until the file or folder will survive a power failure; "" is the root."""
        raise NotImplementedError

    def rename(self, old: str, new: str) -> None:
        """Rename a folder, at once or not at all. Raises FileExistsError if there is one of the new name."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove a folder and its files."""
        raise NotImplementedError

    def list(self, path: str) -> dict[str, int]:
        """Return the names in a folder, each with the size of the file in bytes, 0 for folders; {} without a folder."""
        raise NotImplementedError

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytearray:
        """Return bytes of a file from `start`: fewer than `nbytes` if the file ends, all with None."""
        raise NotImplementedError

    def read_hole(self, nbytes: int) -> None:
        """Take the time of reading bytes without content, where time is modelled."""


class LocalStorage(Storage):
    """A folder of a file system that all ranks share. On virtual ranks it takes the time of the node's storage.

    writers: ranks of a node that write at the same time.
    """

    def __init__(self, root: str | Path, writers: int = 1) -> None:
        self.root = Path(root)
        self._modelled = node_storage()
        self._writers = writers
        self._lock: IO[str] | None = None

    def make_folder(self, path: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock_out_others()
        shutil.rmtree(self.root / path, ignore_errors=True)
        (self.root / path).mkdir()

    def _lock_out_others(self) -> None:
        """Take the lock, which belongs to this process and ends with it, however it ends."""
        if self._lock is None:
            lock = open(self.root / LOCK, "a")  # noqa: SIM115  # open as long as this job writes
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                raise CheckpointError(
                    f"{self.root}: another job writes checkpoints there; choose another checkpoint_dir"
                ) from None
            self._lock = lock

    def write(self, path: str, parts: Iterable[Part]) -> None:
        nbytes = 0
        with _naming(self.root / path), open(self.root / path, "wb", buffering=0) as file:
            for part in parts:
                nbytes += part.nbytes if isinstance(part, (Hole, memoryview)) else len(part)
                if isinstance(part, Hole):
                    file.truncate(nbytes)
                    file.seek(nbytes)
                    continue
                rest = memoryview(part)
                while rest:  # a single call writes 2 GB at most
                    rest = rest[file.write(rest) :]
        if self._modelled is not None:
            self._modelled.write(nbytes * min(self._writers, self._modelled.nproc_per_node))

    def sync(self, path: str) -> None:
        descriptor = os.open(self.root / path, os.O_RDONLY)
        try:
            with _naming(self.root / path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        self._lock_out_others()
        if (self.root / new).exists():
            raise FileExistsError(errno.EEXIST, "another job has written it", str(self.root / new))
        os.rename(self.root / old, self.root / new)

    def remove(self, path: str) -> None:
        self._lock_out_others()
        shutil.rmtree(self.root / path)

    def list(self, path: str) -> dict[str, int]:
        folder = self.root / path
        if not folder.is_dir():
            return {}
        return {entry.name: 0 if entry.is_dir() else entry.stat().st_size for entry in sorted(folder.iterdir())}

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytearray:
        with open(self.root / path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            content = bytearray(max(0, min(size - start, size if nbytes is None else nbytes)))
            file.seek(start)
            rest = memoryview(content)
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
        if self._modelled is not None:
            self._modelled.read(len(content))
        return content

    def read_hole(self, nbytes: int) -> None:
        if self._modelled is not None:
            self._modelled.read(nbytes * min(self._writers, self._modelled.nproc_per_node))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Within the context, an error of an open file, such as a full disk, names its path."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
