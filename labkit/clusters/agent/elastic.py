"""A run that may restart its ranks or go on with fewer nodes, over the agents of several nodes.

The nodes' own elastic agents decide on restarts, and meet at the store of node 0's agent. The client follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.clusters.agent.plan import LaunchPlan
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.elastic.job_state import LAST_REPORTS_SECONDS, ElasticJobState
from labkit.clusters.forkserver import reports
from labkit.clusters.run import Run
from labkit.linux.clock import Clock
from labkit.transport import frames


class ElasticRun:
    """State of one such run; takes the place of `_ActiveRun` in nodes.py."""

    must_end = False
    """Whether the other nodes must end once one has failed: their agents handle that."""

    def __init__(
        self,
        plan: LaunchPlan,
        names: Sequence[str],
        on_output: OnOutput | None,
        on_state: OnState | None,
        send: Callable[[Mapping[str, Any]], None],
        clock: Clock,
    ) -> None:
        """send: sends a frame to the supervisors of all nodes."""
        self._clock = clock
        self.plan = plan
        self.on_output = on_output
        self.on_state = on_state
        self._state = ElasticJobState(
            plan.job,
            plan.nnodes,
            plan.min_nnodes,
            plan.nproc_per_node,
            plan.timeout,
            lambda *output: self.on_output and self.on_output(*output),
            lambda state: self.on_state and self.on_state(state),
            clock,
        )
        self._members = [self._state.join(name) for name in names]
        self._send = send
        self._ended: set[int] = set()
        self._give_up: float | None = None
        """Time at which to stop waiting."""
        self.hang = False
        """Whether to stop the nodes: they hang, or wait for others in vain."""

    def is_over(self) -> bool:
        return len(self._ended) == len(self._members)

    def look_before(self, limit: float | None) -> float | None:
        """Time of the next check, even if nothing has arrived: `limit`, or before."""
        why = self._state.hopeless()
        now = self._clock()
        if not why:
            self._give_up = None
        elif self._give_up is None:
            self._give_up = now + LAST_REPORTS_SECONDS
        elif self._give_up <= now:
            self._state.give_up(why)
            self.hang = True
        return min((at for at in (limit, self._give_up) if at is not None), default=None)

    def take(self, node: int, fields: Mapping[str, Any], data: bytes) -> None:
        if self.hang:
            # the run has been stopped: later reports are useless
            self._ended |= {node} if fields["kind"] == "ended" else set()
            return
        member = self._members[node]
        if fields["kind"] == "frames" and not member.over:
            try:
                self._state.hear(member, data)
                self.hang = bool(self._state.hang())
            except (frames.FrameError, reports.ReportError) as error:
                self._state.malformed(member, error)
                self.hang = True
        elif fields["kind"] == "ended":
            self._ended.add(node)
            self._state.over(member)

    def lose(self, node: int, reason: str) -> None:
        """Handle the end of a node's reports. The job may go on without it, unless it is node 0."""
        if node in self._ended:
            return
        self._ended.add(node)
        if self.hang:
            return
        member = self._members[node]
        self._state.over(member, f"was lost ({reason})")
        if node == 0:
            why = "; nodes meet at its store, so the job cannot go on without it" if len(self._members) > 1 else ""
            self._state.stopped = f"{member.name} was lost: {reason}{why}"
            self.hang = True
        elif member.collector.attempt and not self._state.hopeless():
            # a machine without power closes no connection: ranks connected to its ranks would wait for long
            self._send({"kind": "restart", "attempt": member.collector.attempt})

    def run(self, wall_seconds: float) -> Run:
        """The final run."""
        silent = [member.name for node, member in enumerate(self._members) if node not in self._ended]
        if silent and not self.hang:
            self._state.stopped = f"{', '.join(silent)} did not say how it ended"
        return replace(self._state.outcome(), wall_seconds=wall_seconds)
