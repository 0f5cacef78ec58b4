"""The client's hang policy: a run hangs if no node shows activity and some rank waits for others."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.clusters import hangs
from labkit.clusters.cluster import OnState, State
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.job import Job


class HangPolicy:
    """Checks the collectors of a run, one for each node; call `look` after each feed."""

    def __init__(self, job: Job, collectors: Sequence[Collector], on_state: OnState | None) -> None:
        self._job = job
        self._collectors = collectors
        self._on_state = on_state
        self._reported_hang = False

    def look(self) -> str:
        """The reason to stop the run, for `Run.stopped`, or an empty string.

        For a job that waits on a hang, report all ranks' status once for each hang, and again when it goes on.
        """
        going = [collector for collector in self._collectors if not collector.ended]
        quiet = bool(going) and all(collector.quiet for collector in going)
        if quiet == self._reported_hang:
            return ""
        statuses = [status for collector in self._collectors for status in collector.statuses()]
        if quiet and not hangs.is_hang(statuses):
            return ""
        self._reported_hang = quiet
        reason = f"hang: no output and no progress for {self._job.hang_timeout:g} s"
        if quiet and self._job.on_hang == "stop":
            return reason
        if self._on_state is not None:
            ended = sum(status.exit is not None for status in statuses)
            text = "\n".join([reason, *hangs.report(statuses)]) if quiet else ""
            self._on_state(State("hanging" if quiet else "running", text, ended))
        return ""
