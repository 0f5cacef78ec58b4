"""What the ranks have done: the rows of the trace."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from labkit.clusters.virtual.scheduler.groups import Groups
from labkit.hardware import Topology
from labkit.trace import Trace, events_from


class EventLog:
    """The events of a run in the order in which they became known, unless it is not recorded."""

    __slots__ = ("rows",)

    def __init__(self, recording: bool) -> None:
        self.rows: list[tuple[Any, ...]] | None = [] if recording else None
        """Rows of plain values, in the order of Event's fields: the garbage collector stops tracking those.

        None: nothing is recorded.
        """

    def start(self) -> None:
        """Record from now on, without what came before."""
        self.rows = []

    def trace(self, topology: Topology, groups: Groups) -> Trace:
        """Return the trace of everything so far."""
        # rows are (rank, kind, operation, start, end, ...); the key that counts first is sorted by last. One key of
        # several fields would make a tuple for each row, which takes twice the time
        rows = self.rows or []
        for field in (4, 0, 3):
            rows.sort(key=itemgetter(field))
        size, per_machine = topology.world_size, topology.nproc_per_node
        events, members = events_from(rows), dict(groups.members)
        return Trace(size, events, "modelled", members, (), groups.memberships(), per_machine)
