"""Group repair: process groups of a live rank persist from cell to cell, are cut on a hang, and are connected again.

gloo waits in C++ and can be woken in only one way: when a connection ends, every operation on it fails. So this module
tracks the connections of each group, an interrupt cuts them, and the group then gets new ones under its old name and in
its old Python object, so variables, DDP's reducers and sub-groups that hold it keep working.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from labkit.clusters.live.default_group import DefaultGroup, keep_default_groups
from labkit.clusters.live.messages import Cell, GroupRepair
from labkit.linux.clock import Clock
from labkit.linux.descriptors import open_descriptors
from labkit.torch_versions.groups import follow_groups, groups_of_this_rank
from labkit.torch_versions.stores import PrefixStore, Store
from labkit.torch_versions.tensors import all_ddp, ddp_afresh

_LONGEST_PAUSE_SECONDS = 0.01
_Sockets = dict[int, int]
"""File descriptor -> inode: the descriptor alone may belong to another socket by now."""


class RepairableGroups:
    """All process groups of this rank."""

    def __init__(self, shared: Store, world_size: int) -> None:
        self._shared = InterruptibleStore(shared)
        self._generation = 0
        self._inits = 0
        self._default = DefaultGroup(world_size)
        self._sockets: dict[Any, _Sockets] = {}
        self._before: _Sockets | None = None
        """Sockets open before the group now under construction; None if there is no such group."""

    def install(self) -> None:
        """Track all groups created from now on. Call it when `store` is in use."""
        follow_groups(self._begins, self._is_made)
        keep_default_groups(lambda: self._default)

    def store(self) -> Store:
        """Rendezvous store for a new default group."""
        self._inits += 1
        return PrefixStore(f"{self._generation}/{self._inits}", self._shared)

    def begin(self, cell: Cell) -> None:
        """Note the beginning of a cell."""
        self._default.begin(cell)

    def names(self) -> dict[str, tuple[int, ...]]:
        """Members of each group that `repair` could connect again, by the group's name."""
        return {g.group_name: tuple(dist.get_process_group_ranks(g)) for g in self._present() if _is_repairable(g)}

    def cut(self) -> bool:
        """End every connection of every group; any thread may call it. False if there was none."""
        connections = [dict(sockets) for sockets in list(self._sockets.values())]
        if self._before is not None:
            connections.append({f: i for f, i in _open_sockets().items() if self._before.get(f) != i})
        for group in self._present():
            if not _is_repairable(group):
                with suppress(Exception):
                    group.abort()  # works for nccl
        return sum(_shut_down(fd, inode) for sockets in connections for fd, inode in sockets.items()) > 0

    def repair(self, asked: GroupRepair) -> None:
        """Give groups new connections, without the operations that were under way."""
        self._generation, self._inits = asked.generation, 0
        if asked.without_default:
            self.cut()
            self._sockets.clear()
            with suppress(RuntimeError, ValueError):
                dist.destroy_process_group()
            return
        present = {group.group_name: group for group in self._present()}
        for name in sorted(asked.groups):
            group = present[name]
            for fd, inode in self._sockets.pop(group, {}).items():
                _shut_down(fd, inode)
            self._begins()
            try:
                group.connect_again(PrefixStore(f"{self._generation}/mended/{name}", self._shared))
            finally:
                self._is_made(group)
        ddp_afresh(all_ddp(), [present[name] for name in asked.groups])

    def _present(self) -> list[Any]:
        return groups_of_this_rank()

    def _begins(self) -> None:
        self._before = _open_sockets()

    def _is_made(self, group: Any) -> None:
        before, self._before = self._before or {}, None
        if group is not None:
            present = self._present()
            self._sockets = {g: sockets for g, sockets in self._sockets.items() if any(g is p for p in present)}
            self._sockets[group] = {fd: inode for fd, inode in _open_sockets().items() if before.get(fd) != inode}


class InterruptibleStore(Store):
    """`shared`, with waits in Python: a `KeyboardInterrupt` ends them, and any group creation that uses them."""

    def __init__(self, shared: Store, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._shared = shared
        self._clock = clock
        self._timeout = timedelta(minutes=30)

    def set(self, key: str, value: str | bytes) -> None:
        self._shared.set(key, value)  # type: ignore[arg-type]  # it accepts bytes too

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(self._shared.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._shared.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._shared.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = (self._timeout if timeout is None else timeout).total_seconds()
        began, pause = self._clock(), 0.0005
        while not self.check(keys):
            if self._clock() - began > limit:
                raise dist.DistStoreError(f"after {limit:g} s nobody has set {', '.join(keys)}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return bytes(self._shared.compare_set(key, expected, desired))

    def delete_key(self, key: str) -> bool:
        return bool(self._shared.delete_key(key))

    def num_keys(self) -> int:
        return int(self._shared.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def has_extended_api(self) -> bool:
        return False

    # names that C++ uses
    deleteKey = delete_key
    getNumKeys = num_keys
    setTimeout = set_timeout
    hasExtendedApi = has_extended_api


def _is_repairable(group: Any) -> bool:
    return hasattr(group, "connect_again")


def _open_sockets() -> _Sockets:
    sockets = {}
    for descriptor in open_descriptors():
        with suppress(OSError):
            status = os.stat(descriptor)
            if stat.S_ISSOCK(status.st_mode):
                sockets[descriptor] = status.st_ino
    return sockets


def _shut_down(descriptor: int, inode: int) -> bool:
    """End a connection without closing it, so that threads waiting on it get an error."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        # gloo's loop does not survive the end of its listening socket
        if os.fstat(connection.fileno()).st_ino == inode and not connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False
