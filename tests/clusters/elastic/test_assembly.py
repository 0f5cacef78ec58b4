"""Nodes that start together wait for the slowest of them, however busy the machine is; one that joins does not wait."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from labkit.clusters.elastic import agent
from labkit.torch_versions.stores import FileStore


def test_the_first_waits_for_the_slowest_and_one_that_joins_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_ASSEMBLY", timedelta(hours=1))
    path, order = str(tmp_path / "store"), []

    def first() -> None:
        agent._assemble(FileStore(path), 2)
        order.append("the first goes on")

    waiting = threading.Thread(target=first)
    waiting.start()
    time.sleep(0.3)
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
