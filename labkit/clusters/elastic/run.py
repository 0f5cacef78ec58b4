"""The client's end of an elastic run: a session with each node; nodes that go and come; one `Run` of it all."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.elastic.course import LAST_REPORTS_SECONDS, Course, Member
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.run import Run
from labkit.clusters.warm import Session, WarmProcess, frames, reports


@dataclass(frozen=True)
class Elasticity:
    """How nodes come and go on this machine. Times are seconds since the first ranks were started."""

    nnodes: int
    """The most."""
    min_nnodes: int
    max_restarts: int
    lost: Sequence[float] = ()
    """When a node is taken away, as if its power was cut: the one that came last of those still there."""
    joined: Sequence[float] = ()
    """When a node joins."""

    def nodes_at_start(self) -> int:
        """As many as leave room for those that join. Raises `InvalidJob` when the others cannot begin."""
        count = most = 0
        for _, change in sorted([(at, -1) for at in self.lost] + [(at, 1) for at in self.joined]):
            count += change
            most = max(most, count)
        if self.nnodes - most < self.min_nnodes:
            raise InvalidJob(
                f"{most} of {self.nnodes} nodes would join later, but {self.min_nnodes} are needed to begin; "
                f"ask for --nnodes {self.min_nnodes}:{self.min_nnodes + most}"
            )
        return self.nnodes - most


def run(
    warm: WarmProcess,
    job: Job,
    elasticity: Elasticity,
    *,
    options: Mapping[str, Any],
    nproc_per_node: int,
    environments: Sequence[Mapping[str, str]],
    on_output: OnOutput | None = None,
    on_state: OnState | None = None,
    timeout: float | None = None,
) -> Run:
    """Run `job` on simulated nodes of this machine, each with an elastic agent of torch's; return when all have ended.

    options: for the ranks, as labkit.clusters.local.rank has them. environments: of each node's ranks, beside what the
    agent sets; one for each node that there may be.
    Raises `WarmProcessDied` when nothing could be started; see `WarmProcess.run` for the rest.
    """
    course = Course(job, elasticity.nnodes, elasticity.min_nnodes, nproc_per_node, timeout, on_output, on_state)
    with _Nodes(warm, job, elasticity, options, nproc_per_node, environments, timeout, course) as nodes:
        for _ in range(elasticity.nodes_at_start()):
            nodes.add()
        nodes.follow()
        return course.outcome()


@dataclass
class _Node:
    place: int
    """Which of `environments` it has; the place of a node that is gone is taken by one that joins."""
    session: Session
    member: Member


@dataclass
class _Nodes:
    warm: WarmProcess
    job: Job
    elasticity: Elasticity
    options: Mapping[str, Any]
    nproc_per_node: int
    environments: Sequence[Mapping[str, str]]
    timeout: float | None
    course: Course
    nodes: list[_Node] = field(default_factory=list)

    def __enter__(self) -> _Nodes:
        # every node has it open; it has no name, and is gone with them
        self.shared = os.memfd_create("rendezvous")
        self.changes = sorted(
            [(at, self.lose) for at in self.elasticity.lost] + [(at, self.add) for at in self.elasticity.joined],
            key=lambda change: change[0],
        )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for node in self.nodes:
                node.session.close()
        finally:
            os.close(self.shared)

    def there(self) -> list[_Node]:
        return [node for node in self.nodes if not node.member.over]

    def add(self) -> None:
        """A node joins, unless all are there."""
        taken = {node.place for node in self.there()}
        place = next((place for place in range(self.elasticity.nnodes) if place not in taken), None)
        if place is None:
            return
        elastic = {
            "min_nnodes": self.elasticity.min_nnodes,
            "nnodes": self.elasticity.nnodes,
            "nproc_per_node": self.nproc_per_node,
            "max_restarts": self.elasticity.max_restarts,
            "run_id": f"local-{os.getpid()}-{self.shared}",
            "address": "127.0.0.1",
        }
        asked = self.warm.prepare(
            "labkit.clusters.local.rank:main",
            self.job,
            options={**self.options, "elastic": elastic},
            ranks=[[]] * (self.nproc_per_node + 1),
            environments=[self.environments[place]] * (self.nproc_per_node + 1),
            sockets=1,
            timeout=None if self.timeout is None else max(0.1, self.timeout - self.course.seconds()),
            supervisor="labkit.clusters.elastic.node:Node",
        )
        shared = open(os.dup(self.shared), "rb")  # noqa: SIM115  # it is closed by what follows
        session = self.warm.open(asked, [shared])
        self.nodes.append(_Node(place, session, self.course.join(f"node {len(self.nodes)}")))

    def lose(self) -> None:
        """The last node's power is cut."""
        if there := self.there():
            there[-1].session.close()
            self.course.over(there[-1].member)

    def follow(self) -> None:
        """Take in what all nodes send until they have ended, or nothing more can come of it."""
        limit: float | None = None
        while there := self.there():
            if not self.course.hopeless(bool(self.changes)):
                limit = None
            elif limit is None:
                limit = self.course.seconds() + LAST_REPORTS_SECONDS
            upcoming = [at for at in (limit, self._next_change()) if at is not None]
            wait = max(0.0, min(upcoming) - self.course.seconds()) if upcoming else None
            ready, _, _ = select.select([node.session.connection for node in there], [], [], wait)
            for node in there:
                if node.session.connection in ready:
                    self._hear(node)
            if self.course.hang():
                return
            while (at := self._next_change()) is not None and at <= self.course.seconds():
                self.changes.pop(0)[1]()
            if limit is not None and limit <= self.course.seconds():
                self.course.give_up(self.course.hopeless(bool(self.changes)))
                return

    def _next_change(self) -> float | None:
        """When the next node comes or goes. Their times count from the first ranks' start."""
        first = self.course.first_ranks
        return first + self.changes[0][0] if self.changes and first is not None else None

    def _hear(self, node: _Node) -> None:
        data = node.session.receive()
        if not data:
            self.course.over(node.member)
            return
        try:
            self.course.hear(node.member, data)
        except (frames.FrameError, reports.ReportError) as error:
            node.session.close()
            self.course.malformed(node.member, error)
