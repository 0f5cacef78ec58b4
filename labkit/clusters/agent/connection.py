"""A connection to live ranks on all nodes of a cluster: for its client they are like processes of one machine."""

from __future__ import annotations

import queue
import select
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from labkit.clusters.agent.nodes import END_SECONDS, NodeEvent, Nodes, NodesLost
from labkit.clusters.agent.plan import LaunchPlan
from labkit.linux.clock import wait_seconds
from labkit.transport import frames

_MAX_FRAME_BYTES = 4 << 30


class NodesConnection:
    """The connection that `labkit.clusters.live` uses; see its `RanksConnection`. Created by `open_connection`; call
    `close` at the end.

    Process `i` of node `n` is process `n * nproc_per_node + i` here. The loss of a node is reported as the end of its
    processes.
    """

    def __init__(self, nodes: Nodes, plan: LaunchPlan) -> None:
        self.connection, self._waker = socket.socketpair()
        """Socket for `select`, and the socket that makes it ready."""
        self.when_closed: Callable[[], object] = lambda: None
        """Called by `close`, once."""
        self._nodes = nodes
        self._plan = plan
        self._events: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
        self._decoders = [frames.Decoder(_MAX_FRAME_BYTES) for _ in range(plan.nnodes)]
        self._heard = bytearray()
        self._began: set[int] = set()
        self._over: dict[int, str] = {}
        """Nodes that have ended or were lost, and why."""
        self._exited: set[int] = set()
        self._asked: set[int] = set()
        """Nodes that take part in the present cell."""
        self._all_asked = False
        self._quiet: set[int] = set()
        self._told_quiet = False
        self._closed = False
        self.connection.setblocking(False)
        self._waker.setblocking(False)
        nodes.begin(plan, self)

    def put(self, event: NodeEvent) -> None:
        """Add an event of a node. May be called in any thread."""
        self._events.put(event)
        self._wake()

    def wait_until_begun(self, seconds: float) -> None:
        """Return when all nodes have started their ranks. Raises `NodesLost`."""
        limit = self._nodes.clock() + seconds
        while len(self._began) < self._plan.nnodes or self._over:
            for node, reason in self._over.items():
                raise NodesLost(f"{self._nodes.names[node]} was lost before its ranks began: {reason}")
            if not self._take_all(wait_seconds(self._nodes.clock, limit)) and self._nodes.clock() >= limit:
                missing = ", ".join(self._nodes.names[i] for i in range(self._plan.nnodes) if i not in self._began)
                raise NodesLost(f"{missing} did not start ranks within {seconds:g} s")

    def receive(self, seconds: float | None = None) -> bytes | None:
        """Newly arrived data; empty if all nodes have ended, None if nothing arrived within `seconds`."""
        # all messages of a cell are sent between two calls of `receive`
        self._all_asked = True
        limit = None if seconds is None else self._nodes.clock() + seconds
        while not self._heard and not self._is_over:
            left = wait_seconds(self._nodes.clock, limit)
            if not self._take_all(left) and limit is not None and self._nodes.clock() >= limit:
                return None
        heard, self._heard = bytes(self._heard), bytearray()
        if self._is_over:
            self._wake()  # so that it is called again: the end follows
        return heard

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send a frame to the process that it names, or to all nodes if it names none, except lost ones."""
        if "process" not in header:
            self._nodes.send(self._plan.run, header, payload)
            return
        node, own = divmod(header["process"], self._plan.nproc_per_node)
        if header["kind"] == "input":
            if self._all_asked:
                self._asked.clear()
                self._quiet.clear()
                self._all_asked = self._told_quiet = False
            self._asked.add(node)
        if node not in self._over:
            self._nodes.send(self._plan.run, {**header, "process": own}, payload, node)

    def close(self) -> None:
        """End the ranks on all nodes, and wait until each has confirmed it. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._nodes.stop(self._plan.run)
        limit = self._nodes.clock() + END_SECONDS
        while not self._is_over and (left := wait_seconds(self._nodes.clock, limit)):
            self._take_all(left)
        self._nodes.forget(self._plan.run)
        self.connection.close()
        self._waker.close()
        self.when_closed()

    @property
    def _is_over(self) -> bool:
        return len(self._over) == self._plan.nnodes

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already, or closed
            self._waker.send(b"!")

    def _take_all(self, seconds: float | None) -> bool:
        """Process all events; False if there were none within `seconds`."""
        if not select.select([self.connection], [], [], seconds)[0]:
            return False
        self.connection.recv(1 << 16)
        while not self._events.empty():
            self._take(self._events.get())
        return True

    def _take(self, event: NodeEvent) -> None:
        node, kind = event.node, event.fields.get("kind")
        if node in self._over:
            return
        if event.lost or event.error is not None:
            self._end(node, event.lost or str(event.error))
        elif kind == "began":
            self._began.add(node)
            if len(self._began) == self._plan.nnodes:
                self._heard += frames.encode({"kind": "started"})
        elif kind == "refused":
            self._end(node, event.fields["text"])
        elif kind == "ended":
            self._end(node, "the process that watches over its ranks has ended")
        elif kind == "frames":
            try:
                for header, payload in self._decoders[node].feed(event.data):
                    self._pass_on(node, header, payload)
            except frames.FrameError as error:
                self._end(node, f"it sent something malformed: {error}")

    def _pass_on(self, node: int, header: dict[str, Any], payload: bytes) -> None:
        kind, own = header.get("kind"), header.get("process")
        if kind in ("quiet", "active"):
            (self._quiet.add if kind == "quiet" else self._quiet.discard)(node)
            self._tell_whether_all_are_quiet()
        elif type(own) is int and 0 <= own < self._plan.nproc_per_node:
            process = node * self._plan.nproc_per_node + own
            if kind == "exit":
                self._exited.add(process)
            self._heard += frames.encode({**header, "process": process}, payload)
        elif kind not in ("started", "end"):
            raise frames.FrameError("a frame of no process of this node")

    def _tell_whether_all_are_quiet(self) -> None:
        """Report a hang only when no node that runs the cell shows activity."""
        running = self._asked - self._over.keys()
        quiet = bool(running) and running <= self._quiet
        if quiet != self._told_quiet:
            self._told_quiet = quiet
            self._heard += frames.encode({"kind": "quiet" if quiet else "active"})

    def _end(self, node: int, reason: str) -> None:
        """End a node: report the reason for each of its processes that has not ended by itself."""
        self._over[node] = reason
        lost = f"ended with {self._nodes.names[node]}: {reason}"
        first = node * self._plan.nproc_per_node
        for process in range(first, first + self._plan.nproc_per_node):
            if process not in self._exited:
                self._heard += frames.encode({"kind": "exit", "process": process, "status": None, "lost": lost})
        self._tell_whether_all_are_quiet()


def open_connection(nodes: Nodes, plan: LaunchPlan, seconds: float = 60.0) -> NodesConnection:
    """Start the ranks of `plan`, with `commands` set, on all nodes. Raises `NodesLost` unless all begin in time."""
    connection = NodesConnection(nodes, plan)
    try:
        connection.wait_until_begun(seconds)
    except BaseException:
        connection.close()
        raise
    return connection
