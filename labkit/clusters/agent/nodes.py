"""The client's end: combines the reports of all nodes' agents into one `Run`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from labkit.clusters.agent.elastic import ElasticRun
from labkit.clusters.agent.plan import LaunchPlan
from labkit.clusters.cluster import OnOutput, OnState, State
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.forkserver.hang_policy import HangPolicy
from labkit.clusters.forkserver.notifier import StateNotifier
from labkit.clusters.rank_lists import named_ranks
from labkit.clusters.rank_result import RankResult
from labkit.clusters.run import Run
from labkit.linux.clock import Clock, wait_seconds
from labkit.trace import Trace
from labkit.transport import frames, lines, pickled

END_SECONDS = 10.0
"""Time for all nodes to report their end, once one has failed or the run was stopped."""
_OVERTIME_SECONDS = 15.0
"""Extra time after the timeout, at which nodes end the run themselves; for nodes that do not."""
_MAX_BYTES = 2 << 30
_READY = ""
"""Run name for the nodes' reports about themselves."""


class NodesLost(RuntimeError):
    """A node ended, or did not start, before the job began; the message names it and the reason."""


@dataclass(frozen=True)
class NodeInfo:
    """An agent's report about its machine."""

    host: str
    port: int
    """Port of its store; 0 if it has none."""
    secret: bytes = field(repr=False)
    """Secret of its store; empty if it has none, or was given it."""
    cpus: int
    gpus: int
    torch: str


@dataclass(frozen=True)
class NodeEvent:
    """A message from a node, or the end of the node."""

    node: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""
    lost: str = ""
    """Reason why no more messages will come."""
    error: lines.LineError | None = None
    """Error of an unreadable message."""


class Inbox(Protocol):
    """Receives the events of one run, in any thread."""

    def put(self, event: NodeEvent) -> object: ...


class Nodes:
    """The agents of one job's nodes. The reader of their lines calls `feed` and `lost`, from any thread.

    Several runs may be under way at a time, each with an inbox of its own.
    """

    def __init__(
        self, names: Sequence[str], writers: Sequence[Callable[[str], object]] = (), clock: Clock = time.monotonic
    ) -> None:
        """names[i]: node i's name, for people. writers[i]: sends a line to it; empty if the agents take no input.

        clock: clock of the limits kept here, for nodes to start, to report and to end.
        """
        self.names = list(names)
        self.clock = clock
        self._writers = list(writers)
        self._lock = threading.Lock()
        self._about_nodes: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
        self._inboxes: dict[str, Inbox] = {_READY: self._about_nodes}
        self._for_all: list[NodeEvent] = []
        """Events for every run, including those that begin later."""
        self._over: set[str] = set()
        self._numbered = [lines.LineCounter() for _ in names]
        self._ready: dict[int, NodeInfo] = {}
        self._lost: dict[int, str] = {}

    def feed(self, node: int, line: str) -> None:
        """Process a line from node `node`."""
        try:
            message = lines.read(line)
            with self._lock:
                if message is None or not self._numbered[node].is_new(message[0]):
                    return
                run = message[0].get("run", _READY)
                if run not in self._over:
                    # an agent that works by itself may send lines before its run has an inbox
                    self._inbox(run, queue.SimpleQueue()).put(NodeEvent(node, *message))
        except lines.LineError as error:
            self._tell_all(NodeEvent(node, error=error))

    def lost(self, node: int, reason: str) -> None:
        """Record that no more lines will come from node `node`. Only the first reason counts."""
        with self._lock:
            if node in self._lost:
                return
            self._lost[node] = reason
        self._tell_all(NodeEvent(node, lost=reason))

    def wait_until_ready(self, seconds: float, on_state: OnState | None = None) -> list[NodeInfo]:
        """Each node's report about itself, once all have started. Raises `NodesLost`."""
        limit = self.clock() + seconds
        reported = -1
        while True:
            for node, reason in list(self._lost.items()):
                raise NodesLost(f"{self.names[node]} was lost before the job began: {reason}")
            if len(self._ready) == len(self.names):
                return [self._ready[node] for node in range(len(self.names))]
            if on_state and reported != len(self._ready):
                reported = len(self._ready)
                on_state(State("starting", f"{reported} of {len(self.names)} nodes are ready"))
            event = self._next(self._about_nodes, limit)
            if event is None:
                if self.clock() < limit:
                    continue
                missing = ", ".join(self.names[i] for i in range(len(self.names)) if i not in self._ready)
                raise NodesLost(f"no answer from {missing} within {seconds:g} s")
            if event.error is not None:
                raise event.error
            if event.fields:
                names = ("host", "port", "secret", "cpus", "gpus", "torch")
                values = {name: event.fields[name] for name in names}
                self._ready[event.node] = NodeInfo(**{**values, "secret": bytes.fromhex(values["secret"])})

    def run(self, plan: LaunchPlan, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `plan` on all nodes, or follow it if agents run it by themselves; return when all have ended.

        When a rank fails, or a node is lost, the other nodes are stopped, unless the plan is elastic.
        `KeyboardInterrupt` and errors of `on_output` stop all nodes and are raised again. Raises `NodesLost` if a node
        refuses.
        """
        under_way: _ActiveRun | ElasticRun
        if plan.elastic:
            under_way = ElasticRun(plan, self.names, on_output, on_state, partial(self.send, plan.run), self.clock)
        else:
            under_way = _ActiveRun(plan, self.names, on_output, on_state)
        inbox = self.begin(plan, queue.SimpleQueue())
        assert isinstance(inbox, queue.SimpleQueue)
        began = time.monotonic()
        limit = None if plan.timeout is None else self.clock() + plan.timeout + _OVERTIME_SECONDS
        told_to_end = False
        try:
            while not under_way.is_over() and (limit is None or self.clock() < limit):
                if under_way.hang:
                    break
                if under_way.must_end and not told_to_end:
                    told_to_end = True
                    self.send(plan.run, {"kind": "end"})
                    limit = self.clock() + END_SECONDS
                if event := self._next(inbox, under_way.look_before(limit)):
                    _hand_to(under_way, event, self.names)
        except BaseException:
            self._stop(inbox, under_way)
            raise
        if not under_way.is_over():
            self._stop(inbox, under_way)
        self.forget(plan.run)
        return under_way.run(time.monotonic() - began)

    def begin(self, plan: LaunchPlan, inbox: Inbox) -> Inbox:
        """Make all nodes run `plan`. Its events go into `inbox`, or into the one that already holds some of them.

        Until `forget`; returns the inbox.
        """
        with self._lock:
            used = self._inbox(plan.run, inbox)
        self._send_all(lines.line("run", pickled.dumps(plan)))
        return used

    def send(self, run: str, header: Mapping[str, Any], payload: bytes = b"", node: int | None = None) -> None:
        """Send a frame to the supervisor of a run on one node, or on all nodes if None."""
        text = lines.line("frames", frames.encode(header, payload), run=run)
        self._send_all(text, None if node is None else [node])

    def stop(self, run: str) -> None:
        """End a run's processes on all nodes; each node confirms it."""
        self._send_all(lines.line("stop", run=run))

    def forget(self, run: str) -> None:
        """Drop all later events of a run."""
        with self._lock:
            self._inboxes.pop(run, None)
            self._over.add(run)

    def _stop(self, inbox: queue.SimpleQueue[NodeEvent], under_way: _ActiveRun | ElasticRun) -> None:
        """End a run's processes, and wait until all nodes have confirmed it."""
        self.stop(under_way.plan.run)
        under_way.on_output = under_way.on_state = None
        limit = self.clock() + END_SECONDS
        while self._writers and not under_way.is_over() and self.clock() < limit:
            if event := self._next(inbox, limit):
                _hand_to(under_way, event, self.names)
        self.forget(under_way.plan.run)

    def _next(self, inbox: queue.SimpleQueue[NodeEvent], limit: float | None) -> NodeEvent | None:
        """The next event; None if nothing arrives before `limit` may be over."""
        try:
            return inbox.get(timeout=wait_seconds(self.clock, limit))
        except queue.Empty:
            return None

    def _inbox(self, run: str, new: Inbox) -> Inbox:
        """The inbox of a run, which is `new` if it has none."""
        if run not in self._inboxes:
            self._inboxes[run] = new
            for event in self._for_all:
                new.put(event)
        return self._inboxes[run]

    def _tell_all(self, event: NodeEvent) -> None:
        with self._lock:
            self._for_all.append(event)
            for inbox in self._inboxes.values():
                inbox.put(event)

    def _send_all(self, text: str, nodes: Sequence[int] | None = None) -> None:
        for node, write in enumerate(self._writers):
            if node not in self._lost and (nodes is None or node in nodes):
                try:
                    write(text)
                except OSError as error:
                    self.lost(node, str(error))


def _hand_to(under_way: _ActiveRun | ElasticRun, event: NodeEvent, names: Sequence[str]) -> None:
    """Pass the event on. Raises `LineError`, and `NodesLost` if a node refuses."""
    if event.error is not None:
        raise event.error
    if event.lost:
        under_way.lose(event.node, event.lost)
    elif event.fields.get("kind") == "refused":
        raise NodesLost(f"{names[event.node]} could not start its ranks: {event.fields['text']}")
    else:
        under_way.take(event.node, event.fields, event.data)


class _ActiveRun:
    """State of one run."""

    def __init__(
        self, plan: LaunchPlan, names: Sequence[str], on_output: OnOutput | None, on_state: OnState | None
    ) -> None:
        self.plan = plan
        self.on_output = on_output
        self.on_state = on_state
        self._names = names
        self._collectors = [
            Collector(plan.ranks(node), plan.timeout, self._print, _MAX_BYTES, world_size=plan.world_size)
            for node in range(plan.nnodes)
        ]
        self._ended: set[int] = set()
        self._lost: dict[int, str] = {}
        self._notifier = StateNotifier(self._collectors, self._tell)
        self._hang_policy = HangPolicy(plan.job, self._collectors, self._tell)
        self.hang = ""
        """Reason to stop the run: no node shows activity any more."""

    def _print(self, rank: int, stream: str, text: str) -> None:
        if self.on_output is not None:
            self.on_output(rank, stream, text)

    def _tell(self, state: State) -> None:
        if self.on_state is not None:
            self.on_state(state)

    @property
    def must_end(self) -> bool:
        """Whether a node has failed, so that the others wait for it in vain."""
        return bool(self._lost) or any(self._collectors[node].failed for node in self._ended)

    def is_over(self) -> bool:
        return len(self._ended | self._lost.keys()) == self.plan.nnodes

    def look_before(self, limit: float | None) -> float | None:
        """Time of the next check, even if nothing has arrived: `limit`."""
        return limit

    def take(self, node: int, fields: Mapping[str, Any], data: bytes) -> None:
        kind = fields["kind"]
        if kind == "frames":
            try:
                self._collectors[node].feed(data)
                self._notifier.look()
                self.hang = self.hang or self._hang_policy.look()
            except (frames.FrameError, reports.ReportError) as error:
                self.lose(node, f"it sent something malformed: {error}")
        elif kind == "ended":
            self._ended.add(node)

    def lose(self, node: int, reason: str) -> None:
        if node not in self._ended:
            self._lost.setdefault(node, reason)

    def run(self, wall_seconds: float) -> Run:
        """All nodes' runs as one."""
        first = min((collector.began for collector in self._collectors if collector.began), default=0.0)
        parts = [
            _later(collector.run(wall_seconds, self.hang), (collector.began or first) - first)
            for node, collector in enumerate(self._collectors)
        ]
        lost = [self._lost_for(why) for why in dict.fromkeys(self._lost.values())]
        silent = [self._names[i] for i in range(self.plan.nnodes) if i not in self._ended | self._lost.keys()]
        if silent and not lost:
            lost = [f"{', '.join(silent)} did not say how it ended"]
        stopped = "; ".join(lost) or next((part.stopped for part in parts if part.stopped), "")
        return Run(
            ranks=[result for part in parts for result in part.ranks],
            trace=Trace.merged(part.trace for part in parts),
            wall_seconds=wall_seconds,
            stopped=stopped,
            notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        )

    def _lost_for(self, why: str) -> str:
        """`node2 with ranks 2-3 was lost: ...`, for all nodes lost for one reason."""
        nodes = sorted(node for node, reason in self._lost.items() if reason == why)
        ranks = [rank for node in nodes for process in self.plan.ranks(node) for rank in process]
        names = ", ".join(self._names[node] for node in nodes)
        were = "were" if len(nodes) > 1 else "was"
        return f"{names} with {named_ranks(ranks)} {were} lost: {why}"


def _later(run: Run, seconds: float) -> Run:
    """The same run by a clock that began `seconds` earlier: that of the node which began first."""
    return replace(run, ranks=[_result_later(r, seconds) for r in run.ranks], trace=run.trace.later(seconds))


def _result_later(result: RankResult, seconds: float) -> RankResult:
    if result.error is None:
        return result
    return replace(result, error=replace(result.error, time=result.error.time + seconds))
