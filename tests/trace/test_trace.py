"""A trace's figures, and its plain form, which is accepted only if every detail is valid."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from labkit.trace import SIGNAL_BYTES, Event, Kind, Trace

TRACE = Trace(
    3,
    [
        Event(0, Kind.SEND, "isend", 0.0, 1.0, 8, 1, "0", 1, "Cell In[1], line 2"),
        Event(1, Kind.RECEIVE, "recv", 0.0, 1.5, 8, 0, "0", 1, "Cell In[1], line 3"),
        Event(0, Kind.SEND, "send", 1.0, 2.0, 16, 2, "0", 2, ""),
        Event(2, Kind.COLLECTIVE, "all_reduce", 0.5, 3.0, 4, None, "0", 0, ""),
    ],
    "modelled",
    {"0": (0, 1, 2)},
)


def test_figures() -> None:
    assert TRACE.bytes_sent(0) == 24
    assert TRACE.bytes_told() == 8 + 16 + 4 + 3 * SIGNAL_BYTES
    assert TRACE.messages_sent(0) == 2
    assert TRACE.sends_to(0) == {1, 2}
    assert TRACE.traffic_matrix() == [[0, 8, 16], [0, 0, 0], [0, 0, 0]]
    assert TRACE.collective_counts(2) == {"all_reduce": 1}
    assert TRACE.seconds == 3.0
    assert Trace(2).seconds == 0.0


def test_plain_form_and_back() -> None:
    assert Trace.from_json(json.loads(json.dumps(TRACE.to_json()))) == TRACE
    assert Trace.from_json(Trace(2).to_json()) == Trace(2, [])
    on_machines = replace(TRACE, ranks_per_machine=2)
    assert Trace.from_json(json.loads(json.dumps(on_machines.to_json()))) == on_machines and on_machines.machines == 2
    # files from before traces knew their machines
    older = json.loads(json.dumps(TRACE.to_json()))
    del older["ranks_per_machine"]
    assert Trace.from_json(older) == TRACE and TRACE.machines == 0


def changed(path: list[Any], value: Any) -> Any:
    data = json.loads(json.dumps(TRACE.to_json()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    "forged",
    [
        None,
        [],
        changed(["clock"], "guessed"),
        changed(["events"], {}),
        changed(["events", 0], [0, 1, 0]),
        changed(["events", 0, 0], 3),
        changed(["events", 0, 0], -1),
        changed(["events", 0, 0], True),
        changed(["events", 1, 0], "prayer"),
        changed(["events", 3, 0], float("nan")),
        changed(["events", 5, 0], 1 << 64),
        changed(["events", 6, 0], 7),
        changed(["events", 9, 0], ["x"]),
        changed(["groups", "0"], [0, 9]),
        changed(["world_size"], 2),
        changed(["ranks_per_machine"], -1),
        changed(["ranks_per_machine"], 1.0),
    ],
)
def test_forged_traces_are_refused(forged: Any) -> None:
    with pytest.raises(ValueError):
        Trace.from_json(forged)
