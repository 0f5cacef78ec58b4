"""The client's end of an elastic run: a session with each node, nodes that leave and join, and one `Run` for all."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.elastic.job_state import LAST_REPORTS_SECONDS, ElasticJobState, Member
from labkit.clusters.elastic.node import Node
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.forkserver.session import Session
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.local import rank as local_rank
from labkit.clusters.run import Run
from labkit.linux.clock import wait_seconds
from labkit.transport import frames


@dataclass(frozen=True)
class Elasticity:
    """Leaving and joining nodes on this machine. Times are seconds since the first ranks were started."""

    nnodes: int
    """Maximum number of nodes."""
    min_nnodes: int
    max_restarts: int
    lost: Sequence[float] = ()
    """Times at which a node is lost, as in a power failure: the present node that joined last."""
    joined: Sequence[float] = ()
    """Times at which a node joins."""

    def nodes_at_start(self) -> int:
        """Largest number that leaves room for joining nodes. Raises `InvalidJob` if the job cannot begin with it."""
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
    forkserver: ForkServer,
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
    """Run `job` on simulated nodes of this machine, each with a torch elastic agent; return when all have ended.

    options: of the ranks, as in labkit.clusters.local.rank. environments: variables for each node's ranks beside those
    that the agent sets; one mapping for each possible node.
    Raises `ForkServerDied` if nothing could be started; see `ForkServer.run` for the rest.
    """
    least, most = elasticity.min_nnodes, elasticity.nnodes
    state = ElasticJobState(job, most, least, nproc_per_node, timeout, on_output, on_state, forkserver.clock)
    with _Nodes(forkserver, job, elasticity, options, nproc_per_node, environments, timeout, state) as nodes:
        for _ in range(elasticity.nodes_at_start()):
            nodes.add()
        nodes.follow()
        return state.outcome()


@dataclass
class _Node:
    place: int
    """Index into `environments`; a node that joins takes the place of one that is gone."""
    session: Session
    member: Member


@dataclass
class _Nodes:
    forkserver: ForkServer
    job: Job
    elasticity: Elasticity
    options: Mapping[str, Any]
    nproc_per_node: int
    environments: Sequence[Mapping[str, str]]
    timeout: float | None
    state: ElasticJobState
    nodes: list[_Node] = field(default_factory=list)

    def __enter__(self) -> _Nodes:
        # every node has this file open; it has no name, and disappears with them
        self.shared = os.memfd_create("rendezvous")
        self.began = self.state.clock()
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
        """Let a node join, unless all are present."""
        taken = {node.place for node in self.there()}
        place = next((place for place in range(self.elasticity.nnodes) if place not in taken), None)
        if place is None:
            return
        elastic = {
            "min_nnodes": self.elasticity.min_nnodes,
            "nnodes": self.elasticity.nnodes,
            "nodes_at_start": self.elasticity.nodes_at_start(),
            "nproc_per_node": self.nproc_per_node,
            "max_restarts": self.elasticity.max_restarts,
            "run_id": f"local-{os.getpid()}-{self.shared}",
            "address": "127.0.0.1",
        }
        request = self.forkserver.prepare(
            local_rank.ENTRY,
            self.job,
            options={**self.options, "elastic": elastic},
            ranks=[[]] * (self.nproc_per_node + 1),
            environments=[self.environments[place]] * (self.nproc_per_node + 1),
            sockets=1,
            timeout=None if self.timeout is None else max(0.1, self.timeout - (self.state.clock() - self.began)),
            supervisor=Node,
        )
        shared = open(os.dup(self.shared), "rb")  # noqa: SIM115  # `open` below closes it
        session = self.forkserver.open(request, [shared])
        self.nodes.append(_Node(place, session, self.state.join(f"node {len(self.nodes)}")))

    def lose(self) -> None:
        """Cut the last node's power."""
        if there := self.there():
            there[-1].session.close()
            self.state.over(there[-1].member)

    def follow(self) -> None:
        """Process the nodes' data until they have ended, or no progress is possible."""
        limit: float | None = None
        clock = self.state.clock
        while there := self.there():
            if not self.state.hopeless(bool(self.changes)):
                limit = None
            elif limit is None:
                limit = clock() + LAST_REPORTS_SECONDS
            wait = wait_seconds(clock, limit, self._next_change())
            ready, _, _ = select.select([node.session.connection for node in there], [], [], wait)
            for node in there:
                if node.session.connection in ready:
                    self._hear(node)
            if self.state.hang():
                return
            while (at := self._next_change()) is not None and at <= clock():
                self.changes.pop(0)[1]()
            if limit is not None and limit <= clock():
                self.state.give_up(self.state.hopeless(bool(self.changes)))
                return

    def _next_change(self) -> float | None:
        """Time of the next leaving or joining node, on the clock: they are counted from the first ranks' start."""
        first = self.state.first_ranks
        return first + self.changes[0][0] if self.changes and first is not None else None

    def _hear(self, node: _Node) -> None:
        data = node.session.receive()
        if not data:
            self.state.over(node.member)
            return
        try:
            self.state.hear(node.member, data)
        except (frames.FrameError, reports.ReportError) as error:
            node.session.close()
            self.state.malformed(node.member, error)
