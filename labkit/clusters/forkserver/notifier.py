"""Reports a run's progress: that its processes have been started, and how many ranks have ended."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.clusters.cluster import OnState, State
from labkit.clusters.forkserver.collector import Collector


class StateNotifier:
    """Checks the collectors of a run, one for each node; call `look` after each feed."""

    def __init__(self, collectors: Sequence[Collector], on_state: OnState | None) -> None:
        self._collectors = collectors
        self._on_state = on_state
        self._last_reported = -1

    def look(self) -> None:
        """Report when all nodes have started their processes, and whenever another rank has ended."""
        if self._on_state is None:
            return
        ended = sum(collector.how_many_ended for collector in self._collectors)
        if ended != self._last_reported and all(collector.started for collector in self._collectors):
            self._last_reported = ended
            self._on_state(State("running", ended=ended))
