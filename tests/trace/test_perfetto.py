"""The Perfetto file follows the trace-event format: what a viewer needs to draw every slice and every arrow."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Event, Kind, Trace
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
)


def slices_of(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["ph"] == "X"]


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
def test_slices_of_one_track_never_cross(drawn: list[Event]) -> None:
    trace = Trace(3, sorted(drawn, key=lambda e: e.start))
    tracks = defaultdict(list)
    for row in slices_of(trace_events(trace)):
        tracks[row["pid"], row["tid"]].append((row["ts"], row["ts"] + row["dur"]))
    for spans in tracks.values():
        spans.sort()
        # Perfetto counts whole nanoseconds, 1e-3 of these
        assert all(a_end <= b_start + 1e-6 for (_, a_end), (b_start, _) in pairwise(spans))


@given(st.lists(events, max_size=40))
def test_a_message_joins_one_send_with_one_receive_of_the_right_ranks(drawn: list[Event]) -> None:
    pairs = list(messages(Trace(3, sorted(drawn, key=lambda e: e.start))))
    for sent, received in pairs:
        assert (sent.kind, received.kind) == (Kind.SEND, Kind.RECEIVE)
        assert (sent.rank, sent.peer) == (received.peer, received.rank)
    assert len({id(sent) for sent, _ in pairs}) == len(pairs)
