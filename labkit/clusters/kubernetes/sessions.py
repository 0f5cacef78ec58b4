"""A record of a notebook's objects on the cluster, so that the next notebook deletes those that a killed one has left.

Every kernel holds a lock on a file of its own, which the system releases however the kernel ends. Only files of this
host are checked: on shared file systems a lock may be invisible from another host. No permission to list is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import KubernetesError

_Held = dict[str, list[str]]
"""Paths by the API's address."""


class Session:
    """This process's file. It exists only while there are objects on a cluster."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._held: _Held = {}

    def remember(self, api: Api, paths: Sequence[str]) -> None:
        """Record objects that are about to be created."""
        with self._lock:
            if self._descriptor is None:
                file = _folder() / f"{socket.gethostname()}-{self.name}"
                self._descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._held[api.address] = [*self._held.get(api.address, ()), *paths]
            _write(self._descriptor, self._held)

    def forget(self, api: Api, paths: Sequence[str]) -> None:
        """Remove deleted objects from the record."""
        with self._lock:
            assert self._descriptor is not None
            self._held[api.address] = [path for path in self._held[api.address] if path not in paths]
            _write(self._descriptor, self._held)


session = Session()


def delete_orphans(api: Api) -> int:
    """Delete objects of dead sessions from this cluster; returns the number of objects."""
    deleted = 0
    for file in _folder().glob(f"{socket.gethostname()}-*"):
        with contextlib.suppress(OSError):  # another kernel is doing the same
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = _read(descriptor)
                remaining = []
                for path in held.get(api.address, ()):
                    try:
                        api.delete(path)
                        deleted += 1
                    except KubernetesError:  # next time, perhaps
                        remaining.append(path)
                held[api.address] = remaining
                _write(descriptor, held)
                if not any(held.values()):
                    file.unlink()
            finally:
                os.close(descriptor)
    return deleted


def _read(descriptor: int) -> _Held:
    try:
        held: _Held = json.loads(os.pread(descriptor, 1 << 20, 0) or "{}")
        return held
    except ValueError:  # it was killed while writing
        return {}


def _write(descriptor: int, held: _Held) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(held).encode(), 0)


def _folder() -> Path:
    folder = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "labkit" / "kubernetes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
