"""The key-value store where the nodes of a run meet: as torch's `TCPStore`, but only for who knows the run's secret.

A `TCPStore` answers everyone who reaches its port: any user of the machine, and of the network. Here both ends prove
that they know the secret before anything else is read, by HMAC-SHA256 of random numbers; the secret itself never
travels. Each message after that is authenticated, too. Nothing is encrypted, and nothing is unpickled.

The secret comes with the run's plan, over pipes or files of the job's scheduler: srun's pipes, a Secret of Kubernetes.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from labkit.torch_versions.stores import Store
from labkit.transport import frames

_RANDOM_BYTES = 32
_MAC_BYTES = 32
_MAX_VALUE_BYTES = 1 << 30
_HANDSHAKE_SECONDS = 30.0
"""Time that a peer has to show that it knows the secret."""
_DEFAULT_TIMEOUT = timedelta(minutes=5)
"""As torch's."""
_RETRY_SECONDS = 0.1
_NUMBER = struct.Struct("<Q")


class WrongSecret(ConnectionError):
    """The peer does not know the secret of this run, or a message was changed on its way."""


@dataclass(frozen=True)
class StoreAddress:
    """Where a run's store is, and what its clients need to know."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    run: str
    """Prefix of the run's keys: the store may serve several runs, one after the other."""


def new_secret() -> bytes:
    """Return a secret for one store."""
    return secrets.token_bytes(_RANDOM_BYTES)


class _Channel:
    """A connection whose ends both know the secret. One request at a time."""

    def __init__(self, connection: socket.socket, secret: bytes, serves: bool) -> None:
        """serves: whether this is the server's end. Raises `WrongSecret` or OSError; reads no more than the proof."""
        self._connection = connection
        connection.settimeout(_HANDSHAKE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine without power closes nothing
        own = secrets.token_bytes(_RANDOM_BYTES)
        if serves:
            connection.sendall(own)
            theirs = self._read(_RANDOM_BYTES)
            both = own + theirs
            self._require(self._read(_MAC_BYTES), _mac(secret, b"client", both))
            connection.sendall(_mac(secret, b"server", both))
        else:
            theirs = self._read(_RANDOM_BYTES)
            both = theirs + own
            connection.sendall(own + _mac(secret, b"client", both))
            self._require(self._read(_MAC_BYTES), _mac(secret, b"server", both))
        self._key = _mac(secret, b"messages", both)
        self._names = (b"answer", b"request") if serves else (b"request", b"answer")
        self._sent = self._received = 0
        connection.settimeout(None)

    def send(self, header: Mapping[str, Any], values: Sequence[bytes] = ()) -> None:
        message = frames.encode({**header, "sizes": [len(value) for value in values]}, b"".join(values))
        mac = _mac(self._key, self._names[0], _NUMBER.pack(self._sent) + message)
        self._sent += 1
        self._connection.sendall(_NUMBER.pack(len(message)) + message + mac)

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return a header and its values. Raises `WrongSecret` for a message of another, EOFError at the end."""
        (size,) = _NUMBER.unpack(self._read(_NUMBER.size))
        if size > _MAX_VALUE_BYTES:
            raise WrongSecret(f"a message of {size:,} bytes, at most {_MAX_VALUE_BYTES:,} are possible")
        message = self._read(size)
        mac = self._read(_MAC_BYTES)
        self._require(mac, _mac(self._key, self._names[1], _NUMBER.pack(self._received) + message))
        self._received += 1
        ((header, payload),) = frames.Decoder(_MAX_VALUE_BYTES).feed(message)
        values, at = [], 0
        for length in header.pop("sizes"):
            values.append(payload[at : at + length])
            at += length
        return header, values

    def close(self) -> None:
        self._connection.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._connection.recv(min(size - len(data), 1 << 20))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    @staticmethod
    def _require(shown: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(shown, expected):
            raise WrongSecret("the peer does not know the secret of this run")


def _mac(key: bytes, name: bytes, data: bytes) -> bytes:
    return hmac.digest(key, name + b"\0" + data, "sha256")


class RunStoreServer:
    """Serves a store, in threads of this process, to clients that know `secret`.

    address: of the interface that the nodes share; of this machine alone by default. port 0: a free one. A name or an
    address by which only others know this machine means all interfaces.
    """

    def __init__(self, secret: bytes, address: str = "127.0.0.1", port: int = 0) -> None:
        self._secret = secret
        self._values: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}
        self._changed = threading.Condition()
        self._listening = _listen(address, port)
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, name="labkit store", daemon=True).start()

    def close(self) -> None:
        """Take no more clients."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="labkit store", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError):
            channel = _Channel(connection, self._secret, serves=True)
            while True:
                header, values = channel.receive()
                answer, given = self._answer(header, values)
                channel.send({"answer": answer}, given)

    def _answer(self, asked: Mapping[str, Any], values: list[bytes]) -> tuple[Any, list[bytes]]:
        """Do one operation; see `RunStore` for them. The answer is None if the time is up."""
        operation, keys = asked["operation"], asked["keys"]
        with self._changed:
            if operation in ("get", "wait"):
                if not self._changed.wait_for(lambda: all(key in self._values for key in keys), asked["seconds"]):
                    return None, []
                return True, [self._values[key] for key in keys] if operation == "get" else []
            if operation == "queue_pop":
                if not self._changed.wait_for(lambda: self._queues.get(keys[0]), asked["seconds"]):
                    return None, []
                return True, [self._queues[keys[0]].pop(0)]
            answer, given = self._at_once(operation, asked, keys, values)
            self._changed.notify_all()
            return answer, given

    def _at_once(
        self, operation: str, asked: Mapping[str, Any], keys: list[str], values: list[bytes]
    ) -> tuple[Any, list[bytes]]:
        if operation == "set":
            self._values.update(zip(keys, values, strict=True))
            return True, []
        if operation == "list_keys":
            return sorted(self._values), []
        if operation == "check":
            return all(key in self._values for key in keys), []
        (key,) = keys
        if operation == "add":
            number = int(self._values.get(key, b"0")) + asked["number"]
            self._values[key] = str(number).encode()
            return number, []
        if operation == "append":
            self._values[key] = self._values.get(key, b"") + values[0]
            return True, []
        if operation == "compare_set":
            expected, desired = values
            if self._values.get(key, b"") == expected:
                self._values[key] = desired
            # as torch's: of a key that is not set, what was expected
            return True, [self._values.get(key, expected)]
        if operation == "delete_key":
            return self._values.pop(key, None) is not None, []
        if operation == "queue_push":
            self._queues.setdefault(key, []).append(values[0])
            return True, []
        if operation == "queue_len":
            return len(self._queues.get(key, [])), []
        raise ValueError(operation)


def _listen(address: str, port: int) -> socket.socket:
    own = socket.gethostbyname(address)
    # many systems give their own name to their loopback, which no other machine reaches
    named_loopback = ipaddress.ip_address(own).is_loopback and address not in (own, "localhost")
    try:
        return socket.create_server(("" if named_loopback else own, port), backlog=512)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), backlog=512)


class RunStore(Store):
    """A client of a run's store, with the methods of torch's own. Thread-safe; serves one request at a time."""

    def __init__(self, address: StoreAddress, timeout: timedelta = _DEFAULT_TIMEOUT) -> None:
        """timeout: of the connection, and of each wait. Raises `dist.DistNetworkError` without a connection.

        Raises `WrongSecret` if who listens there does not know the secret.
        """
        super().__init__()
        self._address, self._timeout = address, timeout
        self._lock = threading.Lock()
        self._channel: _Channel | None = _connect(address, timeout.total_seconds())

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], [_data(value)])

    def get(self, key: str) -> bytes:
        return self._ask("get", [key])[1][0]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", [key], number=amount)[0])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys, timeout=timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys)[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._ask("compare_set", [key], [_data(expected), _data(desired)])[1][0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", [key])[0])

    def num_keys(self) -> int:
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        prefix = self._full("")
        return [key.removeprefix(prefix) for key in self._ask("list_keys", [])[0] if key.startswith(prefix)]

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], [_data(value)])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._ask("get", keys)[1]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"multi_set: {len(keys)} keys, but {len(values)} values")
        self._ask("set", keys, [_data(value) for value in values])

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._ask("queue_push", [key], [_data(value)])

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._ask("queue_pop", [key], timeout=None if block else timedelta(0))[1][0]

    def queue_len(self, key: str) -> int:
        return int(self._ask("queue_len", [key])[0])

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> RunStore:
        return RunStore(self._address, self._timeout)

    # names that C++ uses
    deleteKey = delete_key
    getNumKeys = num_keys

    def _full(self, key: str) -> str:
        return f"{self._address.run}/{key}"

    def _ask(
        self, operation: str, keys: Sequence[str], values: Sequence[bytes] = (), number: int = 0,
        timeout: timedelta | None = None,
    ) -> tuple[Any, list[bytes]]:  # fmt: skip
        limit = self._timeout if timeout is None else timeout
        header = {"operation": operation, "keys": [self._full(key) for key in keys], "number": number}
        try:
            with self._lock:
                # after an interrupt, an answer may still be on its way to who no longer waits for it
                channel, self._channel = self._channel or _connect(self._address, 0.0), None
                try:
                    channel.send({**header, "seconds": limit.total_seconds()}, values)
                    answer, given = channel.receive()
                except BaseException:
                    channel.close()
                    raise
                self._channel = channel
        except (OSError, EOFError) as error:
            raise dist.DistNetworkError(f"the store of the run's nodes is lost: {error or 'it has ended'}") from None
        if answer["answer"] is None:
            milliseconds = round(limit.total_seconds() * 1000)
            raise dist.DistStoreError(f"wait timeout after {milliseconds}ms, keys: {', '.join(keys)}")
        return answer["answer"], given


def _connect(address: StoreAddress, seconds: float) -> _Channel:
    limit = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((address.host, address.port), timeout=max(0.1, seconds))
        except OSError as error:  # it may not listen yet, or have no name yet
            if time.monotonic() + _RETRY_SECONDS > limit:
                where = f"{address.host}:{address.port}"
                raise dist.DistNetworkError(f"no store of the run's nodes answers at {where}: {error}") from None
            time.sleep(_RETRY_SECONDS)
            continue
        try:
            return _Channel(connection, address.secret, serves=False)
        except (OSError, EOFError) as error:
            connection.close()
            if isinstance(error, WrongSecret):
                raise
            # who does not know the secret is not answered
            raise WrongSecret(f"the store at {address.host}:{address.port} has closed the connection") from None


def _data(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
