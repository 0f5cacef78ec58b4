"""Messages to a running run: each reaches one process, whatever its size, and an interrupt wakes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import entry_that_listens
import pytest

from labkit import Job
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.forkserver.session import Session


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{':'.join(sys.path)}")
    forkserver = ForkServer()
    asked = forkserver.prepare(
        entry_that_listens.ENTRY,
        Job(source="None"),
        options={},
        ranks=[[0], [1]],
        environments=[{}, {}],
        commands=True,
    )
    opened = forkserver.open(asked)
    yield opened
    opened.close()
    forkserver.close()


def test_each_process_is_sent_its_own(session: Session) -> None:
    printed: list[tuple[int, str]] = []
    collector = Collector([[0], [1]], None, lambda rank, stream, text: printed.append((rank, text)), 1 << 30)
    session.send({"kind": "input", "process": 0}, b"x" * 3_000_000)
    session.send({"kind": "input", "process": 0}, b"end")
    session.send({"kind": "input", "process": 1}, b"sleep")
    while data := session.receive():
        collector.feed(data)
        if (1, "sleeping\n") in printed:
            printed.remove((1, "sleeping\n"))
            session.send({"kind": "stacks"})
            session.send({"kind": "interrupt", "process": 1})
        if (1, "interrupted\n") in printed:
            printed.remove((1, "interrupted\n"))
            session.send({"kind": "input", "process": 1}, b"end")
    run = collector.run(0.0)
    assert run.ok and run.values == [3_000_003, 8]
    assert [text for _, text in sorted(printed)] == ["last words\n"] * 2
    with pytest.raises(OSError):
        session.send({"kind": "stacks"})
    session.close()
