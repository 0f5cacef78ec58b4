"""A trace survives packing and unpacking unchanged; invalid bytes are refused, whatever is wrong with them."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import pytest

from labkit.trace import Category, Event, Kind, Membership, MemorySample, Trace
from labkit.trace.packing import pack, unpack

TRACE = Trace(
    4,
    [
        Event(0, Kind.COMPUTE, "compute", 0.25, 0.5),
        Event(0, Kind.SEND, "isend", 0.5, 0.75, 400, 3, "0", (7 << 31) + 2, "Cell In[3], line 5"),
        Event(2, Kind.COLLECTIVE, "all_reduce", 1.0, 1.5, 1 << 40, None, "1", 12, "Cell In[3], línea 6"),
    ],
    "measured",
    {"0": (0, 1, 2, 3), "1": (0, 2)},
    (MemorySample(0, 0.5, Category.GRADIENT, 1000),),
    (Membership(0, "0", "gloo", 0.25, 1.5), Membership(2, "1", "nccl", 0.5, None)),
)


@pytest.mark.parametrize("trace", [TRACE, Trace(2, [])])
def test_comes_out_as_it_went_in(trace: Trace) -> None:
    found = unpack(pack(trace))
    assert found == trace
    assert len(found.events) == len(trace.events)
    assert list(found.events) == list(trace.events)
    assert found.to_json() == trace.to_json()
    assert unpack(pack(found)) == trace
    assert pickle.loads(pickle.dumps(found)) == trace


def test_merged_and_moved_it_is_as_a_trace_of_plain_events() -> None:
    plain = [TRACE, Trace(4, [Event(3, Kind.RECEIVE, "recv", 0.4, 0.8, 400, 0, "0", (7 << 31) + 2)])]
    assert Trace.merged(map(unpack, map(pack, plain))) == Trace.merged(plain)
    assert [e.rank for e in Trace.merged(plain).events] == [0, 3, 0, 2]
    later = unpack(pack(TRACE)).later(2.0)
    assert later.events[0][3:5] == (2.25, 2.5)
    assert [membership[3:] for membership in later.memberships] == [(2.25, 3.5), (2.5, None)]
    assert Trace.merged(plain).memberships_of(2) == [TRACE.memberships[1]]


def _forged(change: Any) -> bytes:
    """Return TRACE's bytes with another header."""
    data = pack(TRACE)
    (length,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + length])
    change(head)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.update(count=2),
        lambda head: head.update(count=4),
        lambda head: head.update(count=1 << 60),
        lambda head: head.update(count=-1),
        lambda head: head.update(texts={}),
        lambda head: head["texts"].update(line=[]),
        lambda head: head["texts"].update(line=[1, 2, 3]),
        lambda head: head["texts"].update(kind=["compute", "send", "steal"]),
        lambda head: head["texts"].update(more=["x"]),
        lambda head: head["trace"].update(world_size=2),
        lambda head: head["trace"].update(clock="guessed"),
        lambda head: head["trace"].update(memberships=[[4, "0", "gloo", 0.0, None]]),
        lambda head: head["trace"].update(memberships=[[0, "0", "gloo", float("nan"), None]]),
        lambda head: head["trace"].update(memberships=[[0, "0", "gloo", 0.0, 1]]),
        lambda head: head["trace"].update(memberships={"0": 1}),
        lambda head: head.pop("trace"),
    ],
)
def test_a_forged_head_is_refused(change: Any) -> None:
    with pytest.raises(ValueError):
        unpack(_forged(change))


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 40, struct.pack("<Q", 2) + b"[]", pack(TRACE)[:-1]])
def test_bytes_that_are_no_trace_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)


def test_times_and_ranks_that_cannot_be_are_refused() -> None:
    good = pack(TRACE)
    for wrong in (struct.pack("<d", float("nan")), struct.pack("<d", float("inf"))):
        with pytest.raises(ValueError):
            unpack(good.replace(struct.pack("<d", 0.25), wrong))
    for rank in (-1, 4, 1 << 40):
        with pytest.raises(ValueError):
            unpack(pack(Trace(4, [Event(rank, Kind.COMPUTE, "compute", 0.0, 1.0)])))
