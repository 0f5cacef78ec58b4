"""The Perfetto file follows the trace-event format: everything a viewer needs to draw slices and arrows."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import Job, virtual
from labkit.trace import Category, Event, Kind, MemorySample, Trace
from labkit.trace.messages import messages
from labkit.trace.perfetto import trace_events, write_perfetto

# two sends in flight at once, a receive posted before its send, compute beside communication
TRACE = Trace(
    2,
    [
        Event(0, Kind.COMPUTE, "mm", 0.0, 5e-6, 4096, line="Cell In[1], line 2"),
        Event(1, Kind.RECEIVE, "irecv", 0.0, 9e-6, 64, peer=0, group="default", sequence=0),
        Event(0, Kind.SEND, "isend", 1e-6, 8e-6, 64, peer=1, group="default", sequence=0),
        Event(0, Kind.SEND, "isend", 2e-6, 12e-6, 128, peer=1, group="default", sequence=1),
        Event(1, Kind.RECEIVE, "recv", 9e-6, 13e-6, 128, peer=0, group="default", sequence=1),
        Event(0, Kind.COLLECTIVE, "all_reduce", 13e-6, 20e-6, 256, group="default", sequence=0),
        Event(1, Kind.COLLECTIVE, "all_reduce", 13e-6, 20e-6, 256, group="default", sequence=0),
    ],
    clock="modelled",
    groups={"default": (0, 1)},
    memory=(
        MemorySample(0, 0.0, Category.PARAMETER, 4096),
        MemorySample(1, 0.0, Category.PARAMETER, 4096),
        MemorySample(0, 2e-6, Category.ACTIVATION, 512),
        MemorySample(0, 2e-6, Category.ACTIVATION, 1024),
        MemorySample(0, 9e-6, Category.ACTIVATION, 0),
    ),
)


def slices_of(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["ph"] == "X"]


METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
METADATA["thread_sort_index"] = "sort_index"


def validate(document: dict) -> None:
    """Check the trace-event format's requirements for the phases that the lab writes, and that there are no others.

    Google, "Trace Event Format" (2016): fields by phase, flows that are bound, counters of numbers, metadata by name;
    and what Perfetto's importer drops: crossing slices of one track, arrows outside any slice, flows back in time.
    """
    assert document["displayTimeUnit"] in ("ms", "ns")
    json.dumps(document, allow_nan=False)
    tracks: defaultdict = defaultdict(list)
    counters: defaultdict = defaultdict(list)
    flows: defaultdict = defaultdict(dict)
    named = set()
    for row in document["traceEvents"]:
        phase, fields = row["ph"], set(row)
        assert type(row["name"]) is str and row["name"]
        assert type(row["pid"]) is int and type(row["tid"]) is int
        if phase == "M":
            assert fields == {"ph", "name", "pid", "tid", "args"}
            argument = METADATA[row["name"]]
            assert row["args"].keys() == {argument}
            assert type(row["args"][argument]) is (str if argument == "name" else int)
            assert (row["name"], row["pid"], row["tid"]) not in named, "named twice"
            named.add((row["name"], row["pid"], row["tid"]))
            continue
        assert type(row["ts"]) in (int, float) and row["ts"] >= 0
        assert type(row["cat"]) is str
        if phase == "X":
            assert fields == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
            assert type(row["dur"]) in (int, float) and row["dur"] > 0
            # Perfetto keeps whole nanoseconds
            start, length = round(row["ts"] * 1e3), round(row["dur"] * 1e3)
            tracks[row["pid"], row["tid"]].append((start, start + length))
        elif phase == "C":
            assert fields == {"ph", "name", "cat", "pid", "tid", "ts", "args"}
            assert row["args"] and all(type(value) is int and value >= 0 for value in row["args"].values())
            counters[row["pid"], row["name"]].append(row)
        elif phase in ("s", "f"):
            assert fields == {"ph", "name", "cat", "id", "pid", "tid", "ts"} | ({"bp"} if phase == "f" else set())
            assert row.get("bp", "e") == "e"
            assert phase not in flows[row["id"]], "two arrows of one number"
            flows[row["id"]][phase] = row
        else:
            raise AssertionError(f"a phase that the lab does not write: {row}")
    for spans in tracks.values():
        spans.sort()
        assert all(a_end <= b_start for (_, a_end), (b_start, _) in pairwise(spans)), "slices of a track cross"
    for pid, tid in tracks:
        assert {("thread_name", pid, tid), ("process_name", pid, 0)} <= named
    for rows in counters.values():
        assert all(a["ts"] < b["ts"] for a, b in pairwise(rows)), "a counter goes back in time"
        assert len({tuple(row["args"]) for row in rows}) == 1, "a counter's series come and go"
    for flow in flows.values():
        start, end = flow["s"], flow["f"]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        for row in (start, end):
            spans = tracks[row["pid"], row["tid"]]
            assert any(a <= round(row["ts"] * 1e3) < b for a, b in spans), "an arrow that is bound to no slice"


def test_the_file_follows_the_format() -> None:
    document = {"traceEvents": trace_events(TRACE), "displayTimeUnit": "ns"}
    validate(document)
    for spoilt in (
        {"ph": "Q", "name": "x", "pid": 0, "tid": 0, "ts": 0, "cat": "x"},
        {"ph": "f", "bp": "e", "name": "message", "cat": "message", "id": 9, "pid": 0, "tid": 1000, "ts": 1.0},
        {"ph": "X", "name": "mm", "cat": "compute", "pid": 0, "tid": 1000, "ts": 1.0, "dur": 9.0, "args": {}},
        {"ph": "C", "name": "memory (bytes)", "cat": "memory", "pid": 0, "tid": 0, "ts": 0.0, "args": {"x": 1}},
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "again"}},
    ):
        with pytest.raises((AssertionError, KeyError)):
            validate({**document, "traceEvents": [*document["traceEvents"], spoilt]})


def test_memory_is_a_counter_with_a_series_for_each_category() -> None:
    rows = [row for row in trace_events(TRACE) if row["ph"] == "C"]
    assert [(row["pid"], row["ts"], row["args"]) for row in rows] == [
        (0, 0.0, {"parameters": 4096, "activations": 0}),
        (1, 0.0, {"parameters": 4096}),
        (0, 2.0, {"parameters": 4096, "activations": 1024}),
        (0, 9.0, {"parameters": 4096, "activations": 0}),
    ]


STEP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(64, 64)
for _ in range(3):
    model(torch.randn(8, 64)).sum().backward()
    works = [dist.isend(torch.ones(9), (rank + 1) % n), dist.irecv(torch.ones(9), (rank - 1) % n)]
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    for work in works:
        work.wait()
"""


def test_the_file_of_a_real_run_follows_the_format(tmp_path: Path) -> None:
    run = virtual(nproc_per_node=4).run(Job(source=STEP)).raise_if_failed()
    document = json.loads(run.to_perfetto(tmp_path / "run.json").read_text())
    validate(document)
    phases = {row["ph"] for row in document["traceEvents"]}
    assert {"M", "X", "s", "f"} <= phases
    assert ("C" in phases) == bool(run.trace.memory)


def test_file_has_every_event_with_its_bytes_peer_and_line(tmp_path: Path) -> None:
    path = write_perfetto(TRACE, tmp_path / "new" / "trace.json")
    document = json.loads(path.read_text())
    slices = slices_of(document["traceEvents"])
    assert len(slices) == len(TRACE.events)
    (matmul,) = [row for row in slices if row["name"] == "mm"]
    assert (matmul["pid"], matmul["ts"], matmul["dur"], matmul["cat"]) == (0, 0.0, 5.0, "compute")
    assert matmul["args"] == {"bytes": 4096, "line": "Cell In[1], line 2"}
    assert document["displayTimeUnit"] == "ns"
    # peer 0 is a peer, not "no peer"
    assert {row["args"]["peer"] for row in slices if row["pid"] == 1 and row["cat"] == "receive"} == {0}


def test_events_that_follow_at_once_do_not_overlap_in_whole_nanoseconds() -> None:
    ends = [10.6e-9 * number for number in range(20)]
    rows = trace_events(Trace(1, [Event(0, Kind.COMPUTE, "mm", start, end) for start, end in pairwise(ends)]))
    validate({"traceEvents": rows, "displayTimeUnit": "ns"})
    assert len({row["tid"] for row in slices_of(rows)}) == 1


def test_ranks_and_tracks_are_named() -> None:
    rows = trace_events(TRACE)
    processes = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1"}
    named = {(row["pid"], row["tid"]) for row in rows if row["name"] == "thread_name"}
    assert {(row["pid"], row["tid"]) for row in slices_of(rows)} == named


def test_an_arrow_begins_in_its_send_and_ends_in_its_receive() -> None:
    rows = trace_events(TRACE)
    starts = {row["id"]: row for row in rows if row["ph"] == "s"}
    ends = {row["id"]: row for row in rows if row["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == 2
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e" and start["ts"] <= end["ts"]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        for row in (start, end):
            inside = [
                s
                for s in slices_of(rows)
                if (s["pid"], s["tid"]) == (row["pid"], row["tid"]) and s["ts"] <= row["ts"] < s["ts"] + s["dur"]
            ]
            assert len(inside) == 1, "an arrow binds to the one slice around it"


times = st.integers(0, 1000).map(lambda n: n * 1e-7)
events = st.builds(
    lambda rank, kind, start, length, peer: Event(rank, kind, "op", start, start + length, 8, peer=peer),
    st.integers(0, 2),
    st.sampled_from(list(Kind)),
    times,
    times,
    st.integers(0, 2),
)


@given(st.lists(events, max_size=40))
def test_the_file_of_any_trace_follows_the_format(drawn: list[Event]) -> None:
    rows = trace_events(Trace(3, sorted(drawn, key=lambda e: e.start)))
    # a receive that ends before its send began is invalid: its arrow may miss the slice
    rows = [row for row in rows if row["ph"] not in ("s", "f")]
    validate({"traceEvents": rows, "displayTimeUnit": "ns"})


@given(st.lists(events, max_size=40))
def test_a_message_joins_one_send_with_one_receive_of_the_right_ranks(drawn: list[Event]) -> None:
    pairs = list(messages(Trace(3, sorted(drawn, key=lambda e: e.start))))
    for sent, received in pairs:
        assert (sent.kind, received.kind) == (Kind.SEND, Kind.RECEIVE)
        assert (sent.rank, sent.peer) == (received.peer, received.rank)
    assert len({id(sent) for sent, _ in pairs}) == len(pairs)
