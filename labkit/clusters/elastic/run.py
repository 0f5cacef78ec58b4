"""The client's end of an elastic run: a session with each node; nodes that go and come; one `Run` of it all."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.clusters.cluster import OnOutput, OnState, State
from labkit.clusters.elastic.agent import TOLD_TO_END
from labkit.clusters.elastic.attempts import Attempt, AttemptsCollector, Gone
from labkit.clusters.elastic.outcome import Reported, count, merged, why_restarted
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.run import Run
from labkit.clusters.warm import Session, WarmProcess, frames, reports
from labkit.clusters.warm.collector import KeptOutput
from labkit.clusters.warm.hanging import Hanging

_LAST_REPORTS_SECONDS = 1.5
"""For ranks of the nodes that are left, when too few are, to notice it and to say so."""
_MAX_BYTES = 2 << 30
_NOTHING_TO_SAY = "all ranks that are left have ended"


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
    with _Nodes(warm, job, elasticity, options, nproc_per_node, environments, on_output, on_state, timeout) as nodes:
        for _ in range(elasticity.nodes_at_start()):
            nodes.add()
        nodes.follow()
        return nodes.outcome()


@dataclass
class _Node:
    number: int
    place: int
    """Which of `environments` it has; the place of a node that is gone is taken by one that joins."""
    session: Session
    collector: AttemptsCollector
    over: bool = False
    gone: Gone | None = None


@dataclass
class _Nodes:
    warm: WarmProcess
    job: Job
    elasticity: Elasticity
    options: Mapping[str, Any]
    nproc_per_node: int
    environments: Sequence[Mapping[str, str]]
    on_output: OnOutput | None
    on_state: OnState | None
    timeout: float | None
    nodes: list[_Node] = field(default_factory=list)
    output: dict[int, KeptOutput] = field(default_factory=dict)
    going: list[AttemptsCollector] = field(default_factory=list)
    """Of the nodes that are there."""
    stopped: str = ""
    told: State | None = None
    latest: int = 0
    """Number of the latest attempt."""
    first_ranks: float | None = None
    """When the first ranks were started, in seconds since the start."""

    def __enter__(self) -> _Nodes:
        self.began = time.monotonic()
        # every node has it open; it has no name, and is gone with them
        self.shared = os.memfd_create("rendezvous")
        self.hanging = Hanging(self.job, self.going, self.on_state)
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

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self) -> None:
        """A node joins, unless all are there."""
        taken = {node.place for node in self.nodes if not node.over}
        place = next((place for place in range(self.elasticity.nnodes) if place not in taken), None)
        if place is None:
            return
        collector = AttemptsCollector(
            self.nproc_per_node, self.timeout, self.on_output, _MAX_BYTES, self.output, self._note_attempt
        )
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
            timeout=None if self.timeout is None else max(0.1, self.timeout - self.seconds()),
            supervisor="labkit.clusters.elastic.node:Node",
        )
        shared = open(os.dup(self.shared), "rb")  # noqa: SIM115  # it is closed by what follows
        session = self.warm.open(asked, [shared])
        self.nodes.append(_Node(len(self.nodes), place, session, collector))
        self.going.append(collector)

    def lose(self) -> None:
        """The last node's power is cut."""
        node = next((node for node in reversed(self.nodes) if not node.over), None)
        if node is not None:
            node.session.close()
            self._over(node)

    def follow(self) -> None:
        """Take in what all nodes send until they have ended, or nothing more can come of it."""
        limit: float | None = None
        while there := [node for node in self.nodes if not node.over]:
            if not self._hopeless(there):
                limit = None
            elif limit is None:
                limit = self.seconds() + _LAST_REPORTS_SECONDS
            upcoming = [at for at in (limit, self._next_change()) if at is not None]
            wait = max(0.0, min(upcoming) - self.seconds()) if upcoming else None
            ready, _, _ = select.select([node.session.connection for node in there], [], [], wait)
            for node in there:
                if node.session.connection in ready:
                    self._hear(node)
            if reason := self.hanging.look():
                self._stop_for_hang(reason)
                return
            while (at := self._next_change()) is not None and at <= self.seconds():
                self.changes.pop(0)[1]()
            if limit is not None and limit <= self.seconds():
                why = self._hopeless(there)
                self.stopped = "" if why == _NOTHING_TO_SAY else why
                return

    def _stop_for_hang(self, reason: str) -> None:
        self.stopped = reason
        for collector in self.going:
            collector.hangs(reason)

    def _next_change(self) -> float | None:
        """When the next node comes or goes. Their times count from the first ranks' start."""
        return self.first_ranks + self.changes[0][0] if self.changes and self.first_ranks is not None else None

    def _hopeless(self, there: list[_Node]) -> str:
        """Why the nodes that are there wait for others in vain; empty when they need not."""
        gone = any(node.gone for node in self.nodes)
        well = [node for node in there if node.collector.all_well(self.latest)]
        if gone and len(well) == len(there):
            return _NOTHING_TO_SAY
        again = [node for node in there if node.collector.restarting]
        if well and again and len(well) + len(again) == len(there):
            return f"node {again[0].number} starts its ranks again, but those of node {well[0].number} have ended well"
        if gone and len(there) < self.elasticity.min_nnodes and not self.changes:
            left = f"{count(len(there), 'node')} {'is' if len(there) == 1 else 'are'} left"
            return f"{left}, {self.elasticity.min_nnodes} are needed"
        return ""

    def _hear(self, node: _Node) -> None:
        data = node.session.receive()
        if not data:
            self._over(node)
            return
        try:
            node.collector.feed(data)
        except (frames.FrameError, reports.ReportError) as error:
            self.stopped = f"the process that watches over a node sent something malformed: {error}"
            node.session.close()
            self._over(node)
        ended = sum(other.collector.ended_ranks(self.latest) for other in self.nodes)
        if self.told is not None and self.told.phase == "running" and ended != self.told.ended:
            self._tell(State("running", self.told.text, ended))

    def _over(self, node: _Node) -> None:
        node.over = True
        self.going.remove(node.collector)
        if node.collector.agent_status == TOLD_TO_END:
            node.gone = Gone(node.number, self.seconds(), "was told to end (SIGTERM)")
        elif not node.collector.ended:
            node.gone = Gone(node.number, self.seconds(), "was lost")

    def _note_attempt(self, attempt: Attempt | None) -> None:
        if attempt is None:
            if self.told is None or self.told.phase != "restarting":
                self._tell(State("restarting", f"ranks start again {why_restarted(self._reported(), self.latest)}"))
        elif attempt.number > self.latest:
            self.latest = attempt.number
            if self.first_ranks is None:
                self.first_ranks = self.seconds()
            again = f"start {attempt.number}: " if attempt.number > 1 else ""
            nodes = f"{count(attempt.nnodes, 'node')}, " if self.elasticity.nnodes > 1 else ""
            self._tell(State("running", f"{again}{nodes}{count(attempt.world_size, 'rank')}"))

    def _tell(self, state: State) -> None:
        self.told = state
        if self.on_state is not None:
            self.on_state(state)

    def _reported(self) -> Reported:
        return [(node.gone, node.collector.attempts(self.seconds())) for node in self.nodes]

    def outcome(self) -> Run:
        """The run as it has ended."""
        reasons = [node.collector.stopped for node in self.nodes]
        if not self.stopped and "timeout" in reasons:
            self.stopped = f"timeout after {self.timeout:g} s"
        words = [node.collector.last_words for node in self.nodes if node.collector.agent_status == 1]
        notes = [note for node in self.nodes for note in node.collector.notes]
        standings = [standing for node in self.nodes for standing in node.collector.standings()]
        run = merged(self._reported(), self.output, notes, self.seconds(), self.stopped, words)
        return replace(run, standings=sorted(standings, key=lambda standing: standing.rank) if self.stopped else ())
