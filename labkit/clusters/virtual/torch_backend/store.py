"""`torch.distributed.Store` on virtual ranks: every operation is a request to the scheduler (key_values.py).

`TCPStore`, `FileStore` and `HashStore` are named tables of that one store: a `TCPStore` by its host and port, a
`FileStore` by its path. No socket is opened and no file is written.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.clusters.program import line_of
from labkit.clusters.virtual.isolation import current
from labkit.clusters.virtual.scheduler.key_values import DEFAULT_TIMEOUT_SECONDS
from labkit.clusters.virtual.scheduler.requests import StoreCall
from labkit.torch_versions.stores import PrefixStore as CppPrefixStore
from labkit.torch_versions.stores import Store

_DEFAULT_TIMEOUT = timedelta(seconds=DEFAULT_TIMEOUT_SECONDS)
_LOCAL_NAMES = ("127.0.0.1", "::1", "0.0.0.0", "")
_numbers = itertools.count()


class VirtualStore(Store):
    """The keys that begin with `prefix` in the table `name`. Waits use the virtual clock and let other ranks run."""

    def __init__(self, name: str, prefix: str = "", timeout: timedelta = _DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self._name = name
        self._prefix = prefix
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], [_data(value)])

    def get(self, key: str) -> bytes:
        return bytes(self._ask("get", [key])[0])

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", [key], number=amount))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys, timeout=timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(self._ask("compare_set", [key], [_data(expected), _data(desired)]))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", [key]))

    def num_keys(self) -> int:
        return int(self._ask("num_keys", []))

    def list_keys(self) -> list[str]:
        return [key.removeprefix(self._prefix) for key in self._ask("list_keys", [""])]

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], [_data(value)])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [bytes(value) for value in self._ask("get", keys)]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"multi_set: {len(keys)} keys, but {len(values)} values")
        self._ask("set", keys, [_data(value) for value in values])

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._ask("queue_push", [key], [_data(value)])

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return bytes(self._ask("queue_pop", [key], number=int(block)))

    def queue_len(self, key: str) -> int:
        return int(self._ask("queue_len", [key]))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` ranks have called it with this key."""
        arrived = self.add(f"{key}/arrived", 1)
        complete = f"{key}/complete/{(arrived - 1) // world_size}"
        if arrived % world_size == 0:
            self.set(complete, b"1")
        self.wait([complete], timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> VirtualStore:
        return VirtualStore(self._name, self._prefix, self._timeout)

    # names that C++ uses
    deleteKey = delete_key
    getNumKeys = num_keys

    def _ask(
        self, operation: str, keys: Sequence[str], values: Sequence[bytes] = (), number: int = 0,
        timeout: timedelta | None = None,
    ) -> Any:  # fmt: skip
        if isinstance(keys, str):
            raise TypeError(f"{operation}(): a list of keys is needed, got the str {keys!r}")
        endpoint = current.endpoint()
        seconds = (self._timeout if timeout is None else timeout).total_seconds()
        full = [self._prefix + key for key in keys]
        line = line_of(sys._getframe(2))
        call = StoreCall("", operation, line, self._name, full, list(values), number, seconds)
        return endpoint.wait(endpoint.post(call))[0]


class TCPStore(VirtualStore):
    """Shared by all ranks that name the same host and port."""

    libuvBackend = True

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = _DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        if port == 0:
            if not is_master:
                raise ValueError("TCPStore: port 0 is for the master, which chooses one")
            port = 40000 + VirtualStore("ports").add("taken", 1)
        self.host, self.port = host_name, port
        super().__init__(f"tcp://{'localhost' if host_name in _LOCAL_NAMES else host_name}:{port}", "/", timeout)
        server = VirtualStore(f"{self._name} server", "", timeout)
        if is_master and server.add("listening", 1) > 1 and not multi_tenant:
            raise dist.DistNetworkError(
                f"The server socket has failed to listen on any local network address. port: {port}, "
                "code: -98, name: EADDRINUSE, message: address already in use"
            )
        server.wait(["listening"])
        # real stores count their members under a key, too
        joined = VirtualStore(self._name, "", timeout).add("init/", 1)
        if world_size is not None and joined == world_size:
            server.set("complete", b"1")
        if is_master and wait_for_workers and world_size is not None:
            server.wait(["complete"])


class FileStore(VirtualStore):
    """Shared by all ranks that name the same file."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__(f"file://{os.path.abspath(file_name)}", "/")
        self.path = file_name
        # real stores count their members in the file, too
        VirtualStore(self._name).add("members", 1)


class HashStore(VirtualStore):
    """A store of one rank alone."""

    def __init__(self) -> None:
        super().__init__(f"hash {current.endpoint().rank} {next(_numbers)}")


class PrefixStore(VirtualStore):
    """The keys of another store that begin with `prefix/`."""

    def __new__(cls, prefix: str, store: Store) -> Any:
        # a store of a class of the learner's own stays with torch's
        return super().__new__(cls) if isinstance(store, VirtualStore) else CppPrefixStore(prefix, store)

    def __init__(self, prefix: str, store: VirtualStore) -> None:
        super().__init__(store._name, f"{store._prefix}{prefix}/", store._timeout)
        self._underlying = store

    @property
    def underlying_store(self) -> VirtualStore:
        return self._underlying


def install() -> None:
    """Replace torch.distributed's stores with these, in this process."""
    for module in (dist, distributed_c10d):
        for store in (TCPStore, FileStore, HashStore, PrefixStore):
            if hasattr(module, store.__name__):
                setattr(module, store.__name__, store)


def rendezvous_store() -> VirtualStore:
    """The running rank's store for the rendezvous of init_process_group; a different one for each call."""
    rank = current.endpoint().rank
    attempt = _attempts.get(rank, 0)
    _attempts[rank] = attempt + 1
    return VirtualStore("rendezvous", f"{attempt}/")


_attempts: dict[int, int] = {}


def forget_attempts() -> None:
    """Reset the counts of `init_process_group` calls for all ranks of this process."""
    _attempts.clear()


def count_attempts_alike() -> None:
    """Set all ranks' counts of `init_process_group` calls to the largest, so that the next calls match."""
    most = max(_attempts.values(), default=0)
    _attempts.update(dict.fromkeys(_attempts, most))


def _data(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
