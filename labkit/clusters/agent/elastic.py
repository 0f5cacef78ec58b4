"""A run whose ranks may start again, or that may do with fewer nodes, over the agents of several nodes.

The nodes' own elastic agents decide what becomes of it, and meet at the store of node 0's agent. The client follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.clusters.agent.plan import Plan
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.elastic.course import LAST_REPORTS_SECONDS, Course
from labkit.clusters.run import Run
from labkit.clusters.warm import frames, reports


class ElasticRun:
    """What is known of one such run so far; see `_RunUnderWay` in nodes.py, for which it stands in."""

    must_end = False
    """Of the other nodes when one has failed: their agents see to that."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        on_output: OnOutput | None,
        on_state: OnState | None,
        send: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """send: sends a frame to the supervisors of all nodes."""
        self.plan = plan
        self.on_output = on_output
        self.on_state = on_state
        self._course = Course(
            plan.job,
            plan.nnodes,
            plan.min_nnodes,
            plan.nproc_per_node,
            plan.timeout,
            lambda *what: self.on_output and self.on_output(*what),
            lambda state: self.on_state and self.on_state(state),
        )
        self._members = [self._course.join(name) for name in names]
        self._send = send
        self._ended: set[int] = set()
        self._give_up: float | None = None
        """When no more is waited for, on the monotonic clock."""
        self.hang = False
        """Are the nodes to be stopped? They hang, or wait for others in vain."""

    def is_over(self) -> bool:
        return len(self._ended) == len(self._members)

    def look_before(self, limit: float | None) -> float | None:
        """When to look at it again, though nothing has come: at `limit`, on the monotonic clock, or before."""
        why = self._course.hopeless()
        now = time.monotonic()
        if not why:
            self._give_up = None
        elif self._give_up is None:
            self._give_up = now + LAST_REPORTS_SECONDS
        elif self._give_up <= now:
            self._course.give_up(why)
            self.hang = True
        return min((at for at in (limit, self._give_up) if at is not None), default=None)

    def take(self, node: int, fields: Mapping[str, Any], data: bytes) -> None:
        if self.hang:
            # it has been stopped: what they say now is of no use
            self._ended |= {node} if fields["kind"] == "ended" else set()
            return
        member = self._members[node]
        if fields["kind"] == "frames" and not member.over:
            try:
                self._course.hear(member, data)
                self.hang = bool(self._course.hang())
            except (frames.FrameError, reports.ReportError) as error:
                self._course.malformed(member, error)
                self.hang = True
        elif fields["kind"] == "ended":
            self._ended.add(node)
            self._course.over(member)

    def lose(self, node: int, reason: str) -> None:
        """Nothing more will come from this node. The job may do without it, but not without the first one."""
        if node in self._ended:
            return
        self._ended.add(node)
        if self.hang:
            return
        member = self._members[node]
        self._course.over(member, f"was lost ({reason})")
        if node == 0:
            why = "; nodes meet at its store, so the job cannot go on without it" if len(self._members) > 1 else ""
            self._course.stopped = f"{member.name} was lost: {reason}{why}"
            self.hang = True
        elif member.collector.attempt and not self._course.hopeless():
            # a machine without power closes no connection: ranks that talk to its own would wait for long
            self._send({"kind": "restart", "attempt": member.collector.attempt})

    def run(self, wall_seconds: float) -> Run:
        """The run as it has ended."""
        silent = [member.name for node, member in enumerate(self._members) if node not in self._ended]
        if silent and not self.hang:
            self._course.stopped = f"{', '.join(silent)} did not say how it ended"
        return replace(self._course.outcome(), wall_seconds=wall_seconds)
