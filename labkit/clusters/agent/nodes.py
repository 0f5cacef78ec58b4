"""The client's end: what the agents of all nodes say, put together into one `Run`."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from labkit.clusters.agent import lines
from labkit.clusters.agent.elastic import ElasticRun
from labkit.clusters.agent.plan import Plan
from labkit.clusters.cluster import OnOutput, OnState, State
from labkit.clusters.run import RankResult, Run, ranges
from labkit.clusters.warm import frames, reports
from labkit.clusters.warm.collector import Collector
from labkit.clusters.warm.hanging import Hanging
from labkit.clusters.warm.telling import Telling
from labkit.trace import Trace

END_SECONDS = 10.0
"""For all nodes to say how they ended, once one has failed or the run was stopped."""
_OVERTIME_SECONDS = 15.0
"""After its time-out a run is ended by the nodes themselves; this is for nodes that do not."""
_MAX_BYTES = 2 << 30
_READY = ""
"""Instead of a run, for what nodes say of themselves."""


class NodesLost(RuntimeError):
    """A node ended, or did not come up, before the job began; the message says which and why."""


@dataclass(frozen=True)
class Ready:
    """What a node's agent says of its machine."""

    host: str
    port: int
    """Of the store that it keeps; 0 when it keeps none."""
    cpus: int
    gpus: int
    torch: str


@dataclass(frozen=True)
class Event:
    """Something that has come from a node, or the end of it."""

    node: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""
    lost: str = ""
    """Why nothing more will come."""
    error: lines.LineError | None = None
    """What came could not be read."""


class Inbox(Protocol):
    """Takes the events of one run, in any thread."""

    def put(self, event: Event) -> object: ...


class Nodes:
    """The agents of one job's nodes. Whoever reads their lines calls `feed` and `lost`, from any thread.

    Several runs may be under way at a time, each with an inbox of its own.
    """

    def __init__(self, names: Sequence[str], writers: Sequence[Callable[[str], object]] = ()) -> None:
        """names[i]: node i's name, for people. writers[i]: sends a line to it; none where nobody can speak to them."""
        self.names = list(names)
        self._writers = list(writers)
        self._lock = threading.Lock()
        self._about_nodes: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._inboxes: dict[str, Inbox] = {_READY: self._about_nodes}
        self._for_all: list[Event] = []
        """What every run must know, those that begin later too."""
        self._over: set[str] = set()
        self._numbered = [lines.Numbered() for _ in names]
        self._ready: dict[int, Ready] = {}
        self._lost: dict[int, str] = {}

    def feed(self, node: int, line: str) -> None:
        """A line that came from node `node`."""
        try:
            found = lines.read(line)
            with self._lock:
                if found is None or not self._numbered[node].is_new(found[0]):
                    return
                run = found[0].get("run", _READY)
                if run not in self._over:
                    # an agent that works by itself may speak before anybody listens
                    self._inbox(run, queue.SimpleQueue()).put(Event(node, *found))
        except lines.LineError as error:
            self._tell_all(Event(node, error=error))

    def lost(self, node: int, reason: str) -> None:
        """Nothing more will come from node `node`. Only the first reason counts."""
        with self._lock:
            if node in self._lost:
                return
            self._lost[node] = reason
        self._tell_all(Event(node, lost=reason))

    def wait_until_ready(self, seconds: float, on_state: OnState | None = None) -> list[Ready]:
        """What every node says of itself, once all have come up. Raises `NodesLost`."""
        limit = time.monotonic() + seconds
        told = -1
        while True:
            for node, reason in list(self._lost.items()):
                raise NodesLost(f"{self.names[node]} was lost before the job began: {reason}")
            if len(self._ready) == len(self.names):
                return [self._ready[node] for node in range(len(self.names))]
            if on_state and told != len(self._ready):
                told = len(self._ready)
                on_state(State("starting", f"{told} of {len(self.names)} nodes are ready"))
            event = _next(self._about_nodes, limit)
            if event is None:
                missing = ", ".join(self.names[i] for i in range(len(self.names)) if i not in self._ready)
                raise NodesLost(f"no answer from {missing} within {seconds:g} s")
            if event.error is not None:
                raise event.error
            if event.fields:
                said = (event.fields[name] for name in ("host", "port", "cpus", "gpus", "torch"))
                self._ready[event.node] = Ready(*said)

    def run(self, plan: Plan, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `plan` on all nodes, or follow it where agents run it by themselves; return when all have ended.

        When a rank fails, or a node is lost, the other nodes are stopped, unless the plan is elastic.
        `KeyboardInterrupt` and errors of `on_output` stop all nodes and are raised on. Raises `NodesLost` when a node
        refuses.
        """
        under_way: _RunUnderWay | ElasticRun
        if plan.elastic:
            under_way = ElasticRun(plan, self.names, on_output, on_state, partial(self.send, plan.run))
        else:
            under_way = _RunUnderWay(plan, self.names, on_output, on_state)
        inbox = self.begin(plan, queue.SimpleQueue())
        assert isinstance(inbox, queue.SimpleQueue)
        began = time.monotonic()
        limit = None if plan.timeout is None else began + plan.timeout + _OVERTIME_SECONDS
        told_to_end = False
        try:
            while not under_way.is_over() and (limit is None or time.monotonic() < limit):
                if under_way.hang:
                    break
                if under_way.must_end and not told_to_end:
                    told_to_end = True
                    self.send(plan.run, {"kind": "end"})
                    limit = time.monotonic() + END_SECONDS
                if event := _next(inbox, under_way.look_before(limit)):
                    _hand_to(under_way, event, self.names)
        except BaseException:
            self._stop(inbox, under_way)
            raise
        if not under_way.is_over():
            self._stop(inbox, under_way)
        self.forget(plan.run)
        return under_way.run(time.monotonic() - began)

    def begin(self, plan: Plan, inbox: Inbox) -> Inbox:
        """Have all nodes run `plan`. What comes of it goes into `inbox`, or the one that holds what came of it before.

        Until `forget`; returns the inbox.
        """
        with self._lock:
            used = self._inbox(plan.run, inbox)
        self._send_all(lines.line("run", pickle.dumps(plan)))
        return used

    def send(self, run: str, header: Mapping[str, Any], payload: bytes = b"", node: int | None = None) -> None:
        """Send a frame to the supervisor of a run on one node, on all of them when None."""
        text = lines.line("frames", frames.encode(header, payload), run=run)
        self._send_all(text, None if node is None else [node])

    def stop(self, run: str) -> None:
        """Have a run's processes ended on all nodes; each says so."""
        self._send_all(lines.line("stop", run=run))

    def forget(self, run: str) -> None:
        """Nothing matters any more that comes of a run."""
        with self._lock:
            self._inboxes.pop(run, None)
            self._over.add(run)

    def _stop(self, inbox: queue.SimpleQueue[Event], under_way: _RunUnderWay | ElasticRun) -> None:
        """End a run's processes, and wait until all nodes have said so."""
        self.stop(under_way.plan.run)
        under_way.on_output = under_way.on_state = None
        limit = time.monotonic() + END_SECONDS
        while self._writers and not under_way.is_over() and (event := _next(inbox, limit)):
            _hand_to(under_way, event, self.names)
        self.forget(under_way.plan.run)

    def _inbox(self, run: str, new: Inbox) -> Inbox:
        """That of a run, which is `new` when it has none."""
        if run not in self._inboxes:
            self._inboxes[run] = new
            for event in self._for_all:
                new.put(event)
        return self._inboxes[run]

    def _tell_all(self, event: Event) -> None:
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


def _next(inbox: queue.SimpleQueue[Event], limit: float | None) -> Event | None:
    """The next event; None when nothing came until `limit`."""
    try:
        return inbox.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
    except queue.Empty:
        return None


def _hand_to(under_way: _RunUnderWay | ElasticRun, event: Event, names: Sequence[str]) -> None:
    """Tell it what has happened. Raises `LineError`, and `NodesLost` when a node refuses."""
    if event.error is not None:
        raise event.error
    if event.lost:
        under_way.lose(event.node, event.lost)
    elif event.fields.get("kind") == "refused":
        raise NodesLost(f"{names[event.node]} could not start its ranks: {event.fields['text']}")
    else:
        under_way.take(event.node, event.fields, event.data)


class _RunUnderWay:
    """What is known of one run so far."""

    def __init__(self, plan: Plan, names: Sequence[str], on_output: OnOutput | None, on_state: OnState | None) -> None:
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
        self._telling = Telling(self._collectors, self._tell)
        self._hanging = Hanging(plan.job, self._collectors, self._tell)
        self.hang = ""
        """Why the run is to be stopped: no node moves any more."""

    def _print(self, rank: int, stream: str, text: str) -> None:
        if self.on_output is not None:
            self.on_output(rank, stream, text)

    def _tell(self, state: State) -> None:
        if self.on_state is not None:
            self.on_state(state)

    @property
    def must_end(self) -> bool:
        """Has a node failed, so that the others wait for it in vain?"""
        return bool(self._lost) or any(self._collectors[node].failed for node in self._ended)

    def is_over(self) -> bool:
        return len(self._ended | self._lost.keys()) == self.plan.nnodes

    def look_before(self, limit: float | None) -> float | None:
        """When to look at it again, though nothing has come: at `limit`, on the monotonic clock."""
        return limit

    def take(self, node: int, fields: Mapping[str, Any], data: bytes) -> None:
        kind = fields["kind"]
        if kind == "frames":
            try:
                self._collectors[node].feed(data)
                self._telling.look()
                self.hang = self.hang or self._hanging.look()
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
        """`node2 with ranks 2-3 was lost: ...`, for all nodes that were lost for one reason."""
        nodes = sorted(node for node, reason in self._lost.items() if reason == why)
        ranks = [rank for node in nodes for process in self.plan.ranks(node) for rank in process]
        names = ", ".join(self._names[node] for node in nodes)
        were = "were" if len(nodes) > 1 else "was"
        return f"{names} with rank{'s' * (len(ranks) > 1)} {ranges(ranks)} {were} lost: {why}"


def _later(run: Run, seconds: float) -> Run:
    """The same run by a clock that began `seconds` earlier: that of the node which began first."""
    return replace(run, ranks=[_result_later(r, seconds) for r in run.ranks], trace=run.trace.later(seconds))


def _result_later(result: RankResult, seconds: float) -> RankResult:
    if result.error is None:
        return result
    return replace(result, error=replace(result.error, time=result.error.time + seconds))
