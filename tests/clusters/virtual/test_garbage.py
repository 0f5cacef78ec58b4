"""Memory of ranks on fake tensors that references in a cycle hold: freed after fixed numbers of new tensors."""

from __future__ import annotations

import pytest

from labkit import Job, Run, virtual
from labkit.clusters.virtual.device.garbage import Collector

PROGRAM = """
import gc, torch
{first}
others = []
for step in range(250):
    cycle = [torch.empty(1 << 20)]
    cycle.append(cycle)
    {each}
"""


def run(first: str = "", each: str = "", ranks: int = 1) -> Run:
    program = PROGRAM.format(first=first, each=each)
    return virtual(nproc_per_node=ranks, fake=True).run(Job(source=program)).raise_if_failed()


@pytest.mark.parametrize(
    ("first", "each", "held"),
    [("", "", range(100, 105)), ("", "gc.collect()", range(2, 4)), ("gc.disable()", "", range(250, 251))],
    ids=["by itself", "at each step", "never"],
)
def test_garbage_counts_until_the_collector_runs(first: str, each: str, held: range) -> None:
    assert run(first, each).trace.peak_memory(0) >> 22 in held


def test_objects_that_are_no_tensors_change_nothing() -> None:
    few, many = run(ranks=2), run(each="others.append([[] for _ in range(step)])", ranks=2)
    assert many.trace.memory == few.trace.memory


def test_garbage_without_tensors_is_freed() -> None:
    program = """
import gc, weakref
class Node:
    pass
for step in range(300_000):
    node = Node()
    node.itself = node
    if step == 0:
        first = weakref.ref(node)
first() is None
"""
    assert virtual(nproc_per_node=1, fake=True).run(Job(source=program)).raise_if_failed().values == [True]


def test_all_objects_are_looked_through_less_often_the_more_ranks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr("gc.collect", looked.append)
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    collector = Collector()
    collector.count_storages(ranks=3)
    for _ in range(60_000):
        collector.count_storage()
    assert (looked.count(0), looked.count(1), looked.count(2)) == (540, 58, 2)
