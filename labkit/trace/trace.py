"""A trace: every event of every rank of one run, and the figures that are read from it."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from labkit.trace.events import Event, Kind


@dataclass(frozen=True, repr=False)
class Trace:
    """Events of one run, in order of their start.

    `clock` says how times came about: `modelled` (virtual cluster) or `measured` (real processes).
    Traffic figures count point-to-point messages; what a library collective moves is the library's business, so
    collectives are listed apart, by `collectives()`.
    """

    world_size: int
    events: Sequence[Event] = ()
    clock: Literal["modelled", "measured"] = "measured"
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Members (global ranks) of each process group by its name."""

    def __repr__(self) -> str:
        return f"<Trace of {self.world_size} ranks: {len(self.events)} events in {self.seconds:.3g} s, {self.clock}>"

    def of(self, rank: int | None = None, kind: Kind | None = None) -> list[Event]:
        """The events of one rank, or of one kind, or both."""
        return [e for e in self.events if rank in (None, e.rank) and kind in (None, e.kind)]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` sent in point-to-point messages."""
        return sum(e.nbytes for e in self.of(rank, Kind.SEND))

    def messages_sent(self, rank: int) -> int:
        """Number of point-to-point messages that `rank` sent."""
        return len(self.of(rank, Kind.SEND))

    def sends_to(self, rank: int) -> set[int]:
        """The ranks to which `rank` sent anything."""
        return {e.peer for e in self.of(rank, Kind.SEND) if e.peer is not None}

    def collectives(self, rank: int | None = None) -> list[Event]:
        """The library collectives that were called, on `rank` or anywhere."""
        return self.of(rank, Kind.COLLECTIVE)

    def collective_counts(self, rank: int) -> Counter[str]:
        """How often `rank` called each library collective."""
        return Counter(e.operation for e in self.collectives(rank))

    def traffic_matrix(self) -> list[list[int]]:
        """Bytes sent in messages: `matrix[source][destination]`."""
        matrix = [[0] * self.world_size for _ in range(self.world_size)]
        for event in self.of(kind=Kind.SEND):
            if event.peer is not None:
                matrix[event.rank][event.peer] += event.nbytes
        return matrix

    @property
    def seconds(self) -> float:
        """From the first event's start to the last one's end; 0.0 when nothing happened."""
        if not self.events:
            return 0.0
        return max(e.end for e in self.events) - min(e.start for e in self.events)

    def to_json(self) -> dict[str, Any]:
        """Plain data: under `events` one list of values for each field of `Event`, in their order."""
        return {
            "world_size": self.world_size,
            "clock": self.clock,
            "groups": {name: list(ranks) for name, ranks in self.groups.items()},
            "events": [list(column) for column in zip(*self.events, strict=True)] or [[] for _ in Event._fields],
        }

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """The inverse of `to_json`. Raises ValueError unless `data` is a trace in every detail: it may be forged.

        Whole columns are checked at once, which takes a tenth of the time that single events would.
        """
        match data:
            case {"world_size": int() as size, "clock": "modelled" | "measured" as clock, "groups": dict() as groups}:
                columns = data.get("events")
            case _:
                raise ValueError("a trace of the wrong form")
        if not isinstance(columns, list) or len(columns) != len(Event._fields):
            raise ValueError("a trace of the wrong form")
        ranks, kinds, operations, starts, ends, sizes, peers, names, sequences, lines = columns

        def are_ranks(values: list[int]) -> bool:
            return min(values) >= 0 and max(values) < size

        for numbers in (ranks, [peer for peer in peers if peer is not None], *groups.values()):
            _check(numbers, int, are_ranks)
        for numbers in (sizes, sequences):
            _check(numbers, int, lambda values: max(map(abs, values)) < 1 << 63)
        for times in (starts, ends):
            _check(times, float, lambda values: all(map(math.isfinite, values)))
        for texts in (kinds, operations, names, lines):
            _check(texts, str, lambda values: True)
        checked = (ranks, kinds, operations, starts, ends, sizes, peers, names, sequences, lines)
        events = events_from(zip(*checked, strict=True))
        return cls(size, events, clock, {str(name): tuple(members) for name, members in groups.items()})

    @classmethod
    def merged(cls, traces: Iterable[Trace]) -> Trace:
        """One trace out of those that single ranks recorded."""
        parts = list(traces)
        if not parts:
            return cls(0)
        events = sorted((e for part in parts for e in part.events), key=lambda e: (e.start, e.rank))
        groups = {name: ranks for part in parts for name, ranks in part.groups.items()}
        return cls(max(part.world_size for part in parts), events, parts[0].clock, groups)


def events_from(rows: Iterable[Sequence[Any]]) -> list[Event]:
    """Events out of rows of plain values, in the order of `Event`'s fields. Raises ValueError on an unknown kind.

    The garbage collector pauses: it would look through all of them again and again while their number grows, and
    find nothing.
    """
    kinds = {kind.value: kind for kind in Kind}
    collecting = gc.isenabled()
    gc.disable()
    try:
        return [Event(row[0], kinds[row[1]], *row[2:]) for row in rows]
    except KeyError as unknown:
        raise ValueError(f"no kind of event: {unknown}") from None
    finally:
        if collecting:
            gc.enable()


def _check(column: Any, kind: type, holds: Callable[[Any], bool]) -> None:
    """Raise ValueError unless `column` is a list of exactly `kind`, and `holds` for it where it is not empty."""
    if type(column) is not list or set(map(type, column)) - {kind} or (column and not holds(column)):
        raise ValueError("a trace with values of the wrong form")
