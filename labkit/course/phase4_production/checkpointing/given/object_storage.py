"""Checkpoints in object stores and other file systems of fsspec: `memory://run1`, `s3://bucket/run1`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

import fsspec  # type: ignore[import-untyped]  # it has no types

from labkit.course.phase4_production.checkpointing.given.storage import Hole, Part, Storage


class FsspecStorage(Storage):
    """Files below an address of fsspec.

    An object store has no folders and no rename: objects are copied one by one, the manifest last, since without it
    there is no checkpoint. An object that is written is durable, so `sync` has nothing to do. Nothing keeps two jobs
    apart: give each an address of its own.
    """

    def __init__(self, address: str) -> None:
        self.files, root = fsspec.core.url_to_fs(address)
        self.root = root.rstrip("/")

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/")

    def make_folder(self, path: str) -> None:
        if self.files.exists(self._path(path)):
            self.files.rm(self._path(path), recursive=True)
        self.files.makedirs(self._path(path), exist_ok=True)

    def write(self, path: str, parts: Iterable[Part]) -> None:
        with self.files.open(self._path(path), "wb") as file:
            for part in parts:
                file.write(bytes(part.nbytes) if isinstance(part, Hole) else part)

    def sync(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        if self.list(new):
            raise FileExistsError(f"{self._path(new)} exists")
        self.files.makedirs(self._path(new), exist_ok=True)
        for name in sorted(self.list(old), key=lambda name: name.endswith(".json")):
            self.files.mv(self._path(f"{old}/{name}"), self._path(f"{new}/{name}"))
        self.remove(old)

    def remove(self, path: str) -> None:
        # the manifest first: a folder that is half removed is no checkpoint
        for name in sorted(self.list(path), key=lambda name: not name.endswith(".json")):
            self.files.rm_file(self._path(f"{path}/{name}"))
        if self.files.exists(self._path(path)):
            self.files.rm(self._path(path), recursive=True)

    def list(self, path: str) -> dict[str, int]:
        self.files.invalidate_cache()
        if not self.files.isdir(self._path(path)):
            return {}
        entries = sorted(self.files.ls(self._path(path), detail=True), key=lambda entry: str(entry["name"]))
        return {PurePosixPath(entry["name"]).name: entry["size"] or 0 for entry in entries}

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytearray:
        end = None if nbytes is None else start + nbytes
        return bytearray(self.files.cat_file(self._path(path), start=start, end=end))
