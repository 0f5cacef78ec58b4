"""A trace: every event of every rank of one run, and figures computed from it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

from labkit.trace.columns import Columns, columns_of, later, merged
from labkit.trace.events import Event, Kind
from labkit.trace.memberships import Membership, memberships_from
from labkit.trace.memory import Category, MemorySample, peak, samples_from, samples_since

SIGNAL_BYTES = 16
"""Bytes that a message or collective can convey besides its contents: by its tag, and by its time."""


@dataclass(frozen=True, repr=False)
class Trace:
    """Events of one run, sorted by start.

    `clock`: origin of the times, `modelled` (virtual cluster) or `measured` (real processes).
    Traffic figures count point-to-point messages; the traffic of a library collective is up to the library, so
    collectives are listed separately, by `collectives()`.
    """

    world_size: int
    events: Sequence[Event] = ()
    clock: Literal["modelled", "measured"] = "measured"
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Members (global ranks) of each process group by its name."""
    memory: Sequence[MemorySample] = ()
    """Live memory of the ranks over time, if it was counted; each rank's samples sorted by time."""
    memberships: Sequence[Membership] = ()
    """Memberships in process groups over time."""
    ranks_per_machine: int = 0
    """Ranks fill machine after machine, each with this many; 0: not known."""

    def __repr__(self) -> str:
        return f"<Trace of {self.world_size} ranks: {len(self.events)} events in {self.seconds:.3g} s, {self.clock}>"

    def of(self, rank: int | None = None, kind: Kind | None = None) -> list[Event]:
        """The events of one rank, or of one kind, or both."""
        return [e for e in self.events if rank in (None, e.rank) and kind in (None, e.kind)]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` sent in point-to-point messages."""
        return sum(e.nbytes for e in self.of(rank, Kind.SEND))

    def bytes_told(self) -> int:
        """Upper bound on the bytes that all ranks together can have exchanged, in messages and library collectives.

        Counts what a rank puts into each, or should get from it, and `SIGNAL_BYTES` more: an empty message conveys
        something, too.
        """
        return sum(e.nbytes + SIGNAL_BYTES for e in self.events if e.kind in (Kind.SEND, Kind.COLLECTIVE))

    def messages_sent(self, rank: int) -> int:
        """Number of point-to-point messages that `rank` sent."""
        return len(self.of(rank, Kind.SEND))

    def sends_to(self, rank: int) -> set[int]:
        """The ranks to which `rank` sent anything."""
        return {e.peer for e in self.of(rank, Kind.SEND) if e.peer is not None}

    def collectives(self, rank: int | None = None) -> list[Event]:
        """Calls of library collectives, on `rank` or on all ranks."""
        return self.of(rank, Kind.COLLECTIVE)

    def members(self, event: Event) -> tuple[int, ...]:
        """The global ranks of a collective's group: those of the world if nothing is known of the group."""
        return self.groups.get(event.group) or tuple(range(self.world_size))

    def collective_counts(self, rank: int) -> Counter[str]:
        """Number of calls of each library collective on `rank`."""
        return Counter(e.operation for e in self.collectives(rank))

    def memberships_of(self, rank: int) -> list[Membership]:
        """The memberships of `rank`, in the order in which it joined."""
        return [membership for membership in self.memberships if membership.rank == rank]

    def traffic_matrix(self) -> list[list[int]]:
        """Bytes sent in messages: `matrix[source][destination]`."""
        matrix = [[0] * self.world_size for _ in range(self.world_size)]
        for event in self.of(kind=Kind.SEND):
            if event.peer is not None:
                matrix[event.rank][event.peer] += event.nbytes
        return matrix

    def peak_memory(self, rank: int) -> int:
        """Maximum bytes that `rank` held at one time; 0 if memory was not counted."""
        return sum(self.peak_by_category(rank).values())

    def peak_by_category(self, rank: int) -> dict[Category, int]:
        """Memory of `rank` by category at the (first) moment when it held the most."""
        return peak(self._memory_by_rank.get(rank, ()))

    @cached_property
    def _memory_by_rank(self) -> dict[int, list[MemorySample]]:
        by_rank: dict[int, list[MemorySample]] = defaultdict(list)
        for sample in self.memory:
            by_rank[sample.rank].append(sample)
        return by_rank

    @property
    def seconds(self) -> float:
        """Seconds from the first event's start to the last one's end; 0.0 without events."""
        if not self.events:
            return 0.0
        return max(e.end for e in self.events) - min(e.start for e in self.events)

    @property
    def machines(self) -> int:
        """Number of machines; 0: not known."""
        return math.ceil(self.world_size / self.ranks_per_machine) if self.ranks_per_machine else 0

    def since_barrier(self) -> Trace:
        """The part after the last barrier of all ranks: what each rank began after it had left that barrier.

        Memory begins with what each rank held then. Raises ValueError if the trace has no such barrier.
        """
        barriers: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        for event in self.collectives():
            if event.operation == "barrier":
                barriers[event.group, event.sequence][event.rank] = event.end
        of_all = [ends for ends in barriers.values() if len(ends) == self.world_size]
        if not of_all:
            raise ValueError(
                f"the trace has no barrier of all {self.world_size} ranks: call dist.barrier() on every rank, right "
                "before the part that you want to see"
            )
        return self._since(max(of_all, key=lambda ends: max(ends.values())))

    def without_start_up(self) -> Trace:
        """The part after each rank's first `init_process_group`; before it ranks import modules and find each other.

        The whole trace if no process group was recorded.
        """
        joined: dict[int, float] = {}
        for membership in self.memberships:
            joined[membership.rank] = min(membership.joined, joined.get(membership.rank, math.inf))
        return self._since(joined) if joined else self

    def _since(self, moments: Mapping[int, float]) -> Trace:
        """The part that each rank began at its moment or later."""
        events = [event for event in self.events if event.start >= moments.get(event.rank, -math.inf)]
        return replace(self, events=events, memory=samples_since(self.memory, moments))

    def to_json(self) -> dict[str, Any]:
        """Plain data: `events` and `memory` each have one list of values per field, in the order of the fields.

        `memberships` has one list of values per membership.
        """
        return {
            "world_size": self.world_size,
            "clock": self.clock,
            "groups": {name: list(ranks) for name, ranks in self.groups.items()},
            "events": list(columns_of(self.events)),
            "memory": [list(map(itemgetter(field), self.memory)) for field in range(len(MemorySample._fields))],
            "memberships": [list(membership) for membership in self.memberships],
            "ranks_per_machine": self.ranks_per_machine,
        }

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """The inverse of `to_json`. Raises ValueError unless `data` is a valid trace in every detail: it may be forged.

        Whole columns are checked at once, which takes a tenth of the time that single events would.
        """
        match data:
            case {"world_size": int() as size, "clock": "modelled" | "measured" as clock, "groups": dict() as groups}:
                columns, memory = data.get("events"), data.get("memory")
                rows, per_machine = data.get("memberships", []), data.get("ranks_per_machine", 0)
            case _:
                raise ValueError("a trace of the wrong form")
        for given, row in ((columns, Event), (memory, MemorySample)):
            if not isinstance(given, list) or len(given) != len(row._fields):
                raise ValueError("a trace of the wrong form")
        ranks, kinds, operations, starts, ends, sizes, peers, names, sequences, lines = columns
        holders, moments, categories, held = memory

        def are_ranks(values: list[int]) -> bool:
            return min(values) >= 0 and max(values) < size

        def are_finite(values: list[float]) -> bool:
            return all(map(math.isfinite, values))

        for numbers in (ranks, holders, [peer for peer in peers if peer is not None], *groups.values()):
            _check(numbers, int, are_ranks)
        _check([per_machine], int, lambda values: 0 <= values[0] < 1 << 31)
        for numbers in (sizes, sequences):
            _check(numbers, int, lambda values: max(map(abs, values)) < 1 << 63)
        _check(held, int, lambda values: min(values) >= 0 and max(values) < 1 << 63)
        for times in (starts, ends, moments):
            _check(times, float, are_finite)
        for texts in (kinds, operations, names, lines, categories):
            _check(texts, str, lambda values: True)
        if type(rows) is not list or set(map(type, rows)) - {list}:
            raise ValueError("a trace of the wrong form")
        memberships = memberships_from(rows)
        _check([membership.rank for membership in memberships], int, are_ranks)
        _check([t for m in memberships for t in (m.joined, m.left) if t is not None], float, are_finite)
        if set(map(len, columns)) != {len(ranks)} or not set(kinds) <= set(Kind):
            raise ValueError("a trace of the wrong form")
        events = Columns(len(ranks), lambda: columns)
        samples = samples_from(zip(holders, moments, categories, held, strict=True))
        members = {str(name): tuple(ranks) for name, ranks in groups.items()}
        return cls(size, events, clock, members, samples, memberships, per_machine)

    def later(self, seconds: float) -> Trace:
        """The same trace, `seconds` later."""
        if not seconds:
            return self
        events = later(self.events, seconds)
        memory = tuple(s._replace(time=s.time + seconds) for s in self.memory)
        memberships = tuple(
            m._replace(joined=m.joined + seconds, left=None if m.left is None else m.left + seconds)
            for m in self.memberships
        )
        return replace(self, events=events, memory=memory, memberships=memberships)

    @classmethod
    def merged(cls, traces: Iterable[Trace]) -> Trace:
        """One trace from the traces of single ranks."""
        parts = list(traces)
        if len(parts) < 2:
            return parts[0] if parts else cls(0)
        events = merged([part.events for part in parts])
        groups = {name: ranks for part in parts for name, ranks in part.groups.items()}
        memory = sorted((s for part in parts for s in part.memory), key=lambda s: (s.time, s.rank))
        memberships = tuple(membership for part in parts for membership in part.memberships)
        size = max(part.world_size for part in parts)
        per_machine = max(part.ranks_per_machine for part in parts)
        return cls(size, events, parts[0].clock, groups, tuple(memory), memberships, per_machine)


def _check(column: Any, kind: type, holds: Callable[[Any], bool]) -> None:
    """Raise ValueError unless `column` is a list of exactly `kind`, and `holds` for it if it is not empty."""
    if type(column) is not list or set(map(type, column)) - {kind} or (column and not holds(column)):
        raise ValueError("a trace with values of the wrong form")
