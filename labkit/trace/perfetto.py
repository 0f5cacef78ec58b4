"""Export of a trace to https://ui.perfetto.dev, in the Chrome trace-event format.

Each rank is a process there. Each kind of event has a track, and as many more as overlap (several `isend` in flight),
because slices of one track may nest but not cross. Arrows lead from each send to its receive. Memory is a counter of
each rank, with a series for each category.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from labkit.trace.events import Event, Kind
from labkit.trace.messages import messages
from labkit.trace.trace import Trace

_SHORTEST = 1
"""Minimum length in nanoseconds: Perfetto keeps whole ones and cannot draw a slice without length."""


def write_perfetto(trace: Trace, path: str | Path) -> Path:
    """Write `trace` to `path` (`.json`) and return the path. Missing folders are created."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "traceEvents": trace_events(trace),
        "displayTimeUnit": "ns" if trace.seconds < 1e-3 else "ms",
        "otherData": {"clock": trace.clock, "world_size": trace.world_size},
    }
    path.write_text(json.dumps(document, separators=(",", ":")))
    return path


def trace_events(trace: Trace) -> list[dict[str, Any]]:
    """The events of the file: names of ranks and tracks, slices, arrows. Times are in microseconds."""
    rows: list[dict[str, Any]] = []
    for rank in range(trace.world_size):
        rows.append(_metadata("process_name", rank, 0, {"name": f"rank {rank}"}))
        rows.append(_metadata("process_sort_index", rank, 0, {"sort_index": rank}))

    tracks: dict[int, int] = {}  # by the event's id, since two events may be equal
    by_lane: dict[tuple[int, Kind], list[Event]] = defaultdict(list)
    for event in trace.events:
        by_lane[event.rank, event.kind].append(event)
    for (rank, kind), events in by_lane.items():
        base = 1000 * (list(Kind).index(kind) + 1)
        for event, level in _levels(events):
            tracks[id(event)] = base + level
            rows.append(_slice(event, base + level))
        for track in sorted({tracks[id(event)] for event in events}):
            rows.append(_metadata("thread_name", rank, track, {"name": kind.value}))
            rows.append(_metadata("thread_sort_index", rank, track, {"sort_index": track}))

    for number, (sent, received) in enumerate(messages(trace)):
        arrow = {"name": "message", "cat": "message", "id": number}
        begun = _nanoseconds(sent)[0]
        rows.append({**arrow, "ph": "s", "pid": sent.rank, "tid": tracks[id(sent)], "ts": begun / 1000})
        # an arrow ends inside the receive's slice ("bp": "e"), never before it began
        start, end = _nanoseconds(received)
        inside = (max(begun, start) + end) // 2
        target = {"ph": "f", "bp": "e", "pid": received.rank, "tid": tracks[id(received)], "ts": inside / 1000}
        rows.append({**arrow, **target})
    return rows + _counters(trace)


def _counters(trace: Trace) -> list[dict[str, Any]]:
    """Memory of each rank by category after every change; of one moment the last value counts."""
    held: dict[int, dict[str, int]] = {}
    for sample in trace.memory:
        held.setdefault(sample.rank, {})[sample.category.value] = 0
    counters: dict[tuple[int, float], dict[str, Any]] = {}
    for sample in trace.memory:
        held[sample.rank][sample.category.value] = sample.nbytes
        row = {"ph": "C", "name": "memory (bytes)", "cat": "memory", "pid": sample.rank, "tid": 0}
        counters[sample.rank, sample.time] = {**row, "ts": _us(sample.time), "args": dict(held[sample.rank])}
    return list(counters.values())


def _levels(events: list[Event]) -> list[tuple[Event, int]]:
    """Each event with the first level on which it does not overlap an earlier one."""
    placed = []
    free_from: list[int] = []
    for event in sorted(events, key=lambda e: (e.start, e.end)):
        start, end = _nanoseconds(event)
        level = next((i for i, free in enumerate(free_from) if free <= start), len(free_from))
        free_from[level:] = [end, *free_from[level + 1 :]]
        placed.append((event, level))
    return placed


def _nanoseconds(event: Event) -> tuple[int, int]:
    """Start and end, as Perfetto keeps them: if it rounded starts and lengths itself, neighbours could overlap."""
    start = round(event.start * 1e9)
    return start, max(round(event.end * 1e9), start + _SHORTEST)


def _slice(event: Event, track: int) -> dict[str, Any]:
    start, end = _nanoseconds(event)
    details = {"bytes": event.nbytes, "peer": event.peer, "group": event.group, "line": event.line}
    return {
        "ph": "X",
        "name": event.operation if event.peer is None else f"{event.operation} {event.peer}",
        "cat": event.kind.value,
        "pid": event.rank,
        "tid": track,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": {name: value for name, value in details.items() if value is not None and value != ""},
    }


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 6)
