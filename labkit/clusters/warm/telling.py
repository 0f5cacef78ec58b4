"""How far a run is, as its client learns it: that its processes have been started, and how many ranks have ended."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.clusters.cluster import OnState, State
from labkit.clusters.warm.collector import Collector


class Telling:
    """Watches the collectors of a run, one for each node; look after each of them was fed."""

    def __init__(self, collectors: Sequence[Collector], on_state: OnState | None) -> None:
        self._collectors = collectors
        self._on_state = on_state
        self._told = -1

    def look(self) -> None:
        """Say so, once all nodes have started theirs, and whenever another rank has ended."""
        if self._on_state is None:
            return
        ended = sum(collector.how_many_ended for collector in self._collectors)
        if ended != self._told and all(collector.started for collector in self._collectors):
            self._told = ended
            self._on_state(State("running", ended=ended))
