"""The client's decision that a run hangs: every node is silent, and somebody waits for others."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.clusters import hangs
from labkit.clusters.cluster import OnState, State
from labkit.clusters.job import Job
from labkit.clusters.warm.collector import Collector


class Hanging:
    """Watches over the collectors of a run, one for each node; look after each of them was fed."""

    def __init__(self, job: Job, collectors: Sequence[Collector], on_state: OnState | None) -> None:
        self._job = job
        self._collectors = collectors
        self._on_state = on_state
        self._told = False

    def look(self) -> str:
        """Why the run is to be stopped, for `Run.stopped`, or an empty string.

        A job that is to wait is told how all stand, once for each time that it hangs, and again when it goes on.
        """
        going = [collector for collector in self._collectors if not collector.ended]
        quiet = bool(going) and all(collector.quiet for collector in going)
        if quiet == self._told:
            return ""
        standings = [standing for collector in self._collectors for standing in collector.standings()]
        if quiet and not hangs.is_hang(standings):
            return ""
        self._told = quiet
        reason = f"hang: no output and no progress for {self._job.hang_timeout:g} s"
        if quiet and self._job.on_hang == "stop":
            return reason
        if self._on_state is not None:
            ended = sum(standing.exit is not None for standing in standings)
            text = "\n".join([reason, *hangs.report(standings)]) if quiet else ""
            self._on_state(State("hanging" if quiet else "running", text, ended))
        return ""
