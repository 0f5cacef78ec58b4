"""Traces made by hand, with known critical path, overlap and bubble."""

from __future__ import annotations

from labkit.trace import Event, Kind, Trace


def compute(rank: int, start: float, end: float, operators: int = 1) -> Event:
    return Event(rank, Kind.COMPUTE, "compute", start, end, sequence=operators)


def message(
    source: int, destination: int, sent: float, received: float, end: float, number: int, left: float | None = None
) -> list[Event]:
    """A message posted at `sent` and at `received`, delivered at `end`; `left`: when the sender was done with it."""
    return [
        Event(source, Kind.SEND, "isend", sent, end if left is None else left, 8, destination, "0", number),
        Event(destination, Kind.RECEIVE, "irecv", received, end, 8, source, "0", number),
    ]


def collective(starts: list[float], end: float, number: int, name: str = "all_reduce") -> list[Event]:
    return [Event(rank, Kind.COLLECTIVE, name, start, end, 64, None, "0", number) for rank, start in enumerate(starts)]


def trace(world_size: int, *events: Event | list[Event]) -> Trace:
    flat = [event for part in events for event in (part if isinstance(part, list) else [part])]
    groups = {"0": tuple(range(world_size))}
    return Trace(world_size, sorted(flat, key=lambda e: (e.start, e.rank)), "modelled", groups)


def gpipe(stages: int, microbatches: int) -> Trace:
    """Forward of 1 s and backward of 1 s for each microbatch, all forwards first; messages take no time."""
    events: list[Event | list[Event]] = []
    number = 0
    for stage in range(stages):
        for m in range(microbatches):
            start = float(stage + m)
            events.append(compute(stage, start, start + 1))
            if stage + 1 < stages:
                events.append(message(stage, stage + 1, start + 1, start + 1, start + 1, number))
                number += 1
            back = float(stages + microbatches - 1 + (stages - 1 - stage) + m)
            events.append(compute(stage, back, back + 1))
            if stage > 0:
                events.append(message(stage, stage - 1, back + 1, back + 1, back + 1, number))
                number += 1
    return trace(stages, *events)
