"""Nodes that start together wait for the slowest of them, however busy the machine is; one that joins does not wait."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from labkit.clusters.elastic import agent
from labkit.torch_versions.stores import FileStore, TCPStore, wait_for


class WatchedStore(FileStore):  # type: ignore[misc]  # typed as Any, see torch_versions
    """Says when somebody is about to wait in it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.waits = threading.Event()

    def wait(self, *arguments: Any) -> None:
        self.waits.set()
        super().wait(*arguments)


def test_the_first_waits_for_the_slowest_and_one_that_joins_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_ASSEMBLY", timedelta(hours=1))
    path, order = str(tmp_path / "store"), []
    store = WatchedStore(path)

    def first() -> None:
        agent._assemble(store, 2)
        order.append("the first goes on")

    waiting = threading.Thread(target=first)
    waiting.start()
    wait_until(lambda: store.waits.is_set() or not waiting.is_alive())
    order.append("the second comes")
    agent._assemble(FileStore(path), 2)
    waiting.join()
    assert order == ["the second comes", "the first goes on"]
    agent._assemble(FileStore(path), 2)


def test_a_node_that_never_comes_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "store")
    monkeypatch.setattr(agent, "_ASSEMBLY", timedelta(seconds=0.2))
    agent._assemble(FileStore(path), 3)
    monkeypatch.setattr(agent, "_ASSEMBLY", timedelta(hours=1))
    agent._assemble(FileStore(path), 3)  # a late one


def test_a_store_that_is_lost_is_not_taken_for_a_time_that_is_up() -> None:
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = TCPStore("127.0.0.1", keeper.port, is_master=False)
    assert not wait_for(other, ["labkit/assembled"], timedelta(seconds=0.2))
    keeper.set("labkit/assembled", "")
    assert wait_for(other, ["labkit/assembled"], timedelta(hours=1))
    del keeper
    with pytest.raises(RuntimeError, match="onnection"):
        wait_for(other, ["labkit/nodes"], timedelta(hours=1))
