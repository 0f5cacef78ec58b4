"""State of an elastic job: present and lost nodes, attempts, and whether progress is still possible."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from labkit.clusters.cluster import OnOutput, OnState, State
from labkit.clusters.elastic.attempts import TOLD_TO_END, Attempt, AttemptsCollector, NodeLoss
from labkit.clusters.elastic.outcome import NodeReports, count, merged, why_restarted
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.collector import OutputTail
from labkit.clusters.forkserver.hang_policy import HangPolicy
from labkit.clusters.job import Job
from labkit.clusters.run import Run
from labkit.linux.clock import Clock
from labkit.transport import frames

LAST_REPORTS_SECONDS = 1.5
"""Time for ranks of the remaining nodes to notice and report that the job cannot go on."""
_MAX_BYTES = 2 << 30
_NOTHING_TO_SAY = "all ranks that are left have ended"


@dataclass
class Member:
    """A node that takes part, or did."""

    name: str
    """Name for people: `node 1`."""
    collector: AttemptsCollector
    over: bool = False
    gone: NodeLoss | None = None


@dataclass
class ElasticJobState:
    """State of one job, wherever its nodes are. Pass reports to `hear` and `over`, and check `hopeless`."""

    job: Job
    nnodes: int
    """Maximum number of nodes."""
    min_nnodes: int
    nproc_per_node: int
    timeout: float | None
    on_output: OnOutput | None
    on_state: OnState | None
    clock: Clock = time.monotonic
    """Clock of limits, and of nodes that leave and join at set times; in seconds."""
    members: list[Member] = field(default_factory=list)
    stopped: str = ""
    first_ranks: float | None = None
    """Start of the first ranks, on the clock."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._output: dict[int, OutputTail] = {}
        self._last_state: State | None = None
        self._latest = 0
        """Number of the latest attempt."""
        self._going: list[AttemptsCollector] = []
        self._hang_policy = HangPolicy(self.job, self._going, self.on_state)

    def seconds(self) -> float:
        """Wall-clock seconds since the start."""
        return time.monotonic() - self._began

    def join(self, name: str) -> Member:
        """Add a node."""
        collector = AttemptsCollector(
            self.nproc_per_node, self.timeout, self.on_output, _MAX_BYTES, self._output, self._note_attempt
        )
        self.members.append(Member(name, collector))
        self._going.append(collector)
        return self.members[-1]

    @property
    def there(self) -> list[Member]:
        """Nodes that may still report."""
        return [member for member in self.members if not member.over]

    def hear(self, member: Member, data: bytes) -> None:
        """Process data from a node. Raises `FrameError` or `ReportError` if it is malformed."""
        member.collector.feed(data)
        ended = sum(other.collector.ended_ranks(self._latest) for other in self.members)
        if self._last_state is not None and self._last_state.phase == "running" and ended != self._last_state.ended:
            self._tell(State("running", self._last_state.text, ended))

    def over(self, member: Member, how: str = "was lost") -> None:
        """Handle the end of a node's reports. how: what happened to it, if it did not end by itself."""
        if member.over:
            return
        member.over = True
        self._going.remove(member.collector)
        if member.collector.agent_status == TOLD_TO_END:
            member.gone = NodeLoss(member.name, self.seconds(), "was told to end (SIGTERM)")
        elif not member.collector.ended:
            member.gone = NodeLoss(member.name, self.seconds(), how)

    def hang(self) -> str:
        """The reason to stop the job if it hangs; otherwise empty."""
        if reason := self._hang_policy.look():
            self.stopped = reason
            for collector in self._going:
                collector.hangs(reason)
        return reason

    def hopeless(self, more_to_come: bool = False) -> str:
        """The reason why the present nodes wait for others in vain; empty if they do not.

        more_to_come: whether nodes will join.
        """
        there = self.there
        gone = [member.gone for member in self.members if member.gone]
        well = [member for member in there if member.collector.all_well(self._latest)]
        if gone and len(well) == len(there):
            return _NOTHING_TO_SAY
        latest = [member for member in self.members if member.collector.attempt == self._latest]
        if self._latest and all(member.over and not member.gone for member in latest):
            # they have closed the rendezvous; a node without reports since an earlier attempt is not waited for
            return _NOTHING_TO_SAY
        again = [member for member in there if member.collector.restarting]
        if well and again and len(well) + len(again) == len(there):
            return f"{again[0].name} starts its ranks again, but those of {well[0].name} have ended well"
        if gone and len(there) < self.min_nnodes and not more_to_come:
            remaining = f"{count(len(there), 'node')} {'is' if len(there) == 1 else 'are'} left"
            return f"{', '.join(f'{loss.node} {loss.how}' for loss in gone)}: {remaining}, {self.min_nnodes} are needed"
        return ""

    def give_up(self, why: str) -> None:
        """End the job here; why: the result of `hopeless`."""
        if why != _NOTHING_TO_SAY:
            self.stopped = why
            return
        for member in self.there:
            if not member.collector.all_well(self._latest):
                self.over(member)

    def malformed(self, member: Member, error: frames.FrameError | reports.ReportError) -> None:
        """Handle malformed data from a node."""
        self.stopped = f"the process that watches over a node sent something malformed: {error}"
        self.over(member)

    def _note_attempt(self, attempt: Attempt | None) -> None:
        if attempt is None:
            if self._last_state is None or self._last_state.phase != "restarting":
                self._tell(State("restarting", f"ranks start again {why_restarted(self._reported(), self._latest)}"))
        elif attempt.number > self._latest:
            self._latest = attempt.number
            if self.first_ranks is None:
                self.first_ranks = self.clock()
            again = f"start {attempt.number}: " if attempt.number > 1 else ""
            nodes = f"{count(attempt.nnodes, 'node')}, " if self.nnodes > 1 else ""
            self._tell(State("running", f"{again}{nodes}{count(attempt.world_size, 'rank')}"))

    def _tell(self, state: State) -> None:
        self._last_state = state
        if self.on_state is not None:
            self.on_state(state)

    def _reported(self) -> NodeReports:
        return [(member.gone, member.collector.attempts(self.seconds())) for member in self.members]

    def outcome(self) -> Run:
        """The final `Run` of the job."""
        collectors = [member.collector for member in self.members]
        if not self.stopped and any(collector.stopped == "timeout" for collector in collectors):
            self.stopped = f"timeout after {self.timeout:g} s"
        words = [collector.last_words for collector in collectors if collector.agent_status == 1]
        notes = [note for collector in collectors for note in collector.notes]
        statuses = [status for collector in collectors for status in collector.statuses()]
        run = merged(self._reported(), self._output, notes, self.seconds(), self.stopped, words)
        return replace(run, statuses=sorted(statuses, key=lambda status: status.rank) if self.stopped else ())
