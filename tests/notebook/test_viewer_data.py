"""Data sent to the zoomable timeline, and what a reader without a kernel sees instead."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit import Run
from labkit.notebook.viewer import packed
from labkit.plots import palette
from labkit.trace import Event, Kind, Trace

TYPES = {"f64": "<f8", "i32": "<i4", "u32": "<u4"}


def unpacked(trace: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unpack the data as viewer.js does."""
    about, data = packed(trace)
    raw, offset, columns = zlib.decompress(data), 0, {}
    for name, form, length in about["layout"]:
        columns[name] = np.frombuffer(raw, TYPES[form], length, offset)
        # a typed array in JavaScript must begin at a multiple of its elements' size
        assert offset % columns[name].itemsize == 0
        offset += columns[name].nbytes
    assert offset == len(raw)
    return about, columns


times = st.floats(0, 1e3)
events = st.builds(
    lambda rank, kind, start, length, size, peer, line: Event(
        rank, kind, f"op {kind}", start, start + length, size, peer, "0", 3, line
    ),
    st.integers(0, 3),
    st.sampled_from(list(Kind)),
    times,
    times,
    st.integers(0, 2**50),
    st.none() | st.integers(0, 3),
    st.sampled_from(["", "Cell In[1], line 2"]),
)


@given(st.lists(events, max_size=30))
def test_every_event_arrives_in_its_lane(drawn: list[Event]) -> None:
    trace = Trace(4, sorted(drawn, key=lambda e: e.start), "modelled", {"0": (0, 1, 2, 3)})
    about, columns = unpacked(trace)
    kinds = [Kind(kind["name"]) for kind in about["kinds"]]
    assert [kind["colour"] for kind in about["kinds"]] == [palette.KIND[kind] for kind in kinds]
    arrived = []
    for lane, (first, last) in enumerate(zip(columns["lanes"], columns["lanes"][1:], strict=False)):
        starts = columns["start"][first:last]
        assert (np.diff(starts) >= 0).all(), "the page looks for times by bisection"
        for i in range(first, last):
            assert columns["rank"][i] == lane // len(kinds)
            arrived.append(
                Event(
                    lane // len(kinds),
                    kinds[lane % len(kinds)],
                    about["operations"][columns["operation"][i]],
                    columns["start"][i],
                    columns["end"][i],
                    int(columns["nbytes"][i]),
                    None if columns["peer"][i] < 0 else int(columns["peer"][i]),
                    "0",
                    int(columns["sequence"][i]),
                    about["lines"][columns["line"][i]],
                )
            )
    assert sorted(arrived, key=repr) == sorted(trace.events, key=repr)
    assert not drawn or about["groups"] == ["group of ranks 0-3"]


def test_messages_name_the_places_of_their_two_events() -> None:
    sent = Event(1, Kind.SEND, "isend", 0.0, 1.0, 8, 0, "0", 0)
    received = Event(0, Kind.RECEIVE, "recv", 0.5, 1.5, 8, 1, "0", 0)
    _, columns = unpacked(Trace(2, [sent, received]))
    a, b = columns["messages"]
    assert (columns["start"][a], columns["start"][b]) == (0.0, 0.5)


def test_a_stored_notebook_has_the_still_picture() -> None:
    trace = Trace(2, [Event(0, Kind.COMPUTE, "compute", 0.0, 1.0)], "modelled")
    data, metadata = Run([], trace).view()._repr_mimebundle_()
    assert data.keys() == {"application/vnd.jupyter.widget-view+json", "text/html", "image/png", "text/plain"}
    assert 'alt="Timeline of 2 ranks, modelled.' in data["text/html"]
    assert data["text/plain"] == "<Timeline of 2 ranks, modelled>"
    assert metadata["image/png"]["alt"].startswith("Timeline of 2 ranks, modelled.")


def test_an_empty_trace_is_shown_too() -> None:
    about, columns = unpacked(Trace(3))
    assert about["kinds"] == [] and list(columns["lanes"]) == [0]
