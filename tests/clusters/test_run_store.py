"""The store where nodes meet is for who knows the run's secret, and otherwise as torch's own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from labkit.clusters.run_store import RunStore, RunStoreServer, StoreAddress, WrongSecret, new_secret
from labkit.torch_versions.stores import PrefixStore, TCPStore, wait_for

AT_ONCE = timedelta(milliseconds=1)


@pytest.fixture
def address() -> Iterator[StoreAddress]:
    secret = new_secret()
    server = RunStoreServer(secret)
    yield StoreAddress("127.0.0.1", server.port, secret, "run")
    server.close()


def torch_store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "set, get": lambda store: (store.set("a", "1"), store.get("a")),
    "bytes": lambda store: (store.set("b", bytes(range(256)).decode("latin-1")), len(store.get("b"))),
    "add": lambda store: (store.add("n", 2), store.add("n", -5), store.get("n")),
    "check": lambda store: (store.set("c", ""), store.check(["c"]), store.check(["c", "missing"])),
    "compare_set": lambda store: [
        store.compare_set("x", "other", "1"), store.check(["x"]), store.compare_set("x", "", "1"),
        store.compare_set("x", "2", "3"), store.compare_set("x", "1", "4"), store.get("x"),
    ],
    "delete_key": lambda store: (store.set("d", "1"), store.delete_key("d"), store.delete_key("d")),
    "append": lambda store: (store.append("e", "1"), store.append("e", "23"), store.get("e")),
    "multi": lambda store: (store.multi_set(["f", "g"], ["1", ""]), store.multi_get(["f", "g"])),
    "queue": lambda store: [
        store.queue_push("q", "1"), store.queue_push("q", "2"), store.queue_len("q"), store.queue_pop("q"),
    ],
    "keys": lambda store: sorted(set(store.list_keys()) - {"init/"}) if hasattr(store, "list_keys") else [],
}  # fmt: skip


def test_operations_are_torchs(address: StoreAddress) -> None:
    ours, torchs = RunStore(address), torch_store()
    for name, operation in OPERATIONS.items():
        assert operation(ours) == operation(torchs), name
        if name in ("queue", "keys"):  # torch's prefixes have none of stores in Python
            continue
        assert operation(PrefixStore("in C++", ours)) == operation(PrefixStore("in C++", torchs)), name


def test_a_wait_that_is_over_is_torchs_error(address: StoreAddress) -> None:
    store = RunStore(address)
    assert not wait_for(store, ["missing"], AT_ONCE)
    assert not wait_for(PrefixStore("p", store), ["missing"], AT_ONCE)
    store.set_timeout(AT_ONCE)
    with pytest.raises(dist.DistStoreError, match="wait timeout after 1ms, keys: missing"):
        store.get("missing")
    store.set("missing", "1")
    assert wait_for(store, ["missing"], AT_ONCE) and store.clone().get("missing") == b"1"


def test_a_wait_ends_when_another_sets_the_key(address: StoreAddress) -> None:
    waiting, setting = RunStore(address), RunStore(address)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(waiting.get("key")))
    thread.start()
    setting.set("key", "value")
    thread.join()
    assert found == [b"value"]


def test_runs_have_keys_of_their_own(address: StoreAddress) -> None:
    one, other = RunStore(address), RunStore(replace(address, run="other"))
    one.set("key", "1")
    assert not other.check(["key"]) and other.num_keys() == 0 and one.num_keys() == 1


def test_who_does_not_know_the_secret_reads_and_writes_nothing(address: StoreAddress) -> None:
    RunStore(address).set("key", "value")
    with pytest.raises(WrongSecret):
        RunStore(replace(address, secret=new_secret()))
    with pytest.raises(RuntimeError):
        TCPStore("127.0.0.1", address.port, is_master=False, timeout=timedelta(seconds=2)).set("key", "changed")
    # a request before the proof is not read as one
    with socket.create_connection(("127.0.0.1", address.port)) as connection:
        begins = connection.recv(100)
        assert len(begins) == 32
        connection.sendall(bytes(64) + b'{"operation": "set"}')
        with pytest.raises((ConnectionResetError, EOFError)):
            if not connection.recv(100):
                raise EOFError
    assert RunStore(address).get("key") == b"value"


def test_a_client_gives_nothing_to_a_server_that_does_not_know_the_secret(address: StoreAddress) -> None:
    """Another user may take the port before the run does."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        received: list[bytes] = []

        def pretend() -> None:
            connection, _ = taken.accept()
            with connection:
                connection.sendall(bytes(32))
                received.append(connection.recv(1000))
                connection.sendall(bytes(32))
                received.append(connection.recv(1000))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(WrongSecret):
            RunStore(replace(address, port=taken.getsockname()[1]))
        thread.join()
    assert len(received[0]) == 64 and address.secret not in received[0] and received[1] == b""


def test_a_message_that_was_changed_on_its_way_ends_the_connection(address: StoreAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as between:

        def relay() -> None:
            client, _ = between.accept()
            server = socket.create_connection(("127.0.0.1", address.port))
            with client, server:
                client.sendall(server.recv(32, socket.MSG_WAITALL))
                server.sendall(client.recv(64, socket.MSG_WAITALL))
                client.sendall(server.recv(32, socket.MSG_WAITALL))
                server.sendall(client.recv(1 << 16).replace(b"value", b"other"))
                client.sendall(server.recv(1 << 16))

        thread = threading.Thread(target=relay)
        thread.start()
        store = RunStore(replace(address, port=between.getsockname()[1]))
        with pytest.raises(dist.DistNetworkError, match="the store of the run's nodes is lost"):
            store.set("key", "value")
        thread.join()
    assert not RunStore(address).check(["key"])


def test_the_secret_is_in_no_text(address: StoreAddress) -> None:
    assert str(address.secret) not in repr(address)


def test_an_interrupted_request_does_not_answer_the_next_one(
    address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(address)
    store.set("key", "value")
    assert store._channel is not None
    with monkeypatch.context() as patch:

        def interrupted() -> None:
            raise KeyboardInterrupt

        patch.setattr(store._channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.get("key")
    assert store.check(["missing"]) is False and store.get("key") == b"value"


def test_no_store_at_an_address_is_said(address: StoreAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(dist.DistNetworkError, match=f"no store of the run's nodes answers at 127.0.0.1:{port}"):
        RunStore(replace(address, port=port), AT_ONCE)


@pytest.mark.parametrize(
    ("address", "interfaces"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("192.0.2.1", "0.0.0.0")]
)
def test_the_store_listens_on_the_interface_that_nodes_share(address: str, interfaces: str) -> None:
    server = RunStoreServer(new_secret(), address)
    assert server._listening.getsockname()[0] == interfaces
    server.close()
