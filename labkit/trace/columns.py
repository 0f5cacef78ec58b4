"""Many events at small cost: as columns, with `Event` objects created only on access.

A rank may record 200,000 events, which should not delay the end of a cell by seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, overload

import numpy as np

from labkit.trace.events import Event, Kind

Column = list[Any]


class Columns(Sequence[Event]):
    """`count` events. `make` returns one list of plain values for each field, in the order of `Event`'s."""

    def __init__(self, count: int, make: Callable[[], Sequence[Column]]) -> None:
        self._count = count
        self._make = make

    @cached_property
    def columns(self) -> Sequence[Column]:
        """One list of values for each field."""
        return self._make()

    @cached_property
    def _events(self) -> list[Event]:
        return events_from(zip(*self.columns, strict=True))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Event: ...

    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...

    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._events[place]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._events == list(other)

    def __reduce__(self) -> Any:
        return list, (self._events,)


def columns_of(events: Sequence[Event]) -> Sequence[Column]:
    """One list of values for each field."""
    if isinstance(events, Columns):
        return events.columns
    return [list(map(itemgetter(field), events)) for field in range(len(Event._fields))]


def merged(parts: Sequence[Sequence[Event]]) -> Columns:
    """All events, sorted by start, then by rank."""

    def make() -> Sequence[Column]:
        same = zip(*map(columns_of, parts), strict=True)
        return in_order([[value for column in columns for value in column] for columns in same])

    return Columns(sum(map(len, parts)), make)


def later(events: Sequence[Event], seconds: float) -> Columns:
    """The same events, `seconds` later."""

    def make() -> Sequence[Column]:
        columns = list(columns_of(events))
        for field in (Event._fields.index("start"), Event._fields.index("end")):
            columns[field] = [time + seconds for time in columns[field]]
        return columns

    return Columns(len(events), make)


def in_order(columns: Sequence[Column]) -> Sequence[Column]:
    """The same events, sorted by start, then by rank."""
    ranks, starts = (np.array(columns[Event._fields.index(name)], dtype="<f8") for name in ("rank", "start"))
    order = np.lexsort((ranks, starts)).tolist()
    return [[column[place] for place in order] for column in columns]


def events_from(rows: Iterable[Sequence[Any]]) -> list[Event]:
    """Events from rows of plain values, in the order of `Event`'s fields. Raises ValueError on an unknown kind.

    The garbage collector is paused: it would scan all of them again and again while their number grows, and find
    nothing.
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
