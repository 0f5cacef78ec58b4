"""The agent's end of the connection to its node, which forks the ranks, signals them and reports their ends.

From the agent, as frames: `start` with each rank's environment, `signal`, `restarting`. To it: `started` with process
identifiers, `exit` of one rank, `restart` when the client knows that an attempt has lost a node.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from labkit.linux.clock import Clock, wait_seconds
from labkit.torch_versions.agents import Workers
from labkit.transport import frames

_MAX_BYTES = 16 << 20


class NodeConnection:
    """Frames between the agent and its node, in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._decoder = frames.Decoder(_MAX_BYTES)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send one frame. Raises `OSError` if the other end is gone."""
        self.connection.sendall(frames.encode(header, payload))

    def receive(self) -> Iterator[tuple[dict[str, Any], bytes]] | None:
        """The next frames, once there are any; None if the other end is gone."""
        data = self.connection.recv(1 << 16)
        return self._decoder.feed(data) if data else None


class ForkedWorkers(Workers):
    """One attempt's ranks on this node, from the agent's point of view."""

    def __init__(
        self, node_connection: NodeConnection, attempt: Mapping[str, Any], clock: Clock = time.monotonic, **started: Any
    ) -> None:
        """attempt: number and time for the node, see node.py. clock: for the time that ranks have to end. started:
        arguments of torch's `start_processes`.
        """
        names = ("name", "entrypoint", "args", "envs", "logs_specs")
        super().__init__(**{name: started[name] for name in names})
        self._node_connection = node_connection
        self._clock = clock
        self._attempt = attempt
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        """Exit code, or minus the signal's number, by local rank."""
        self._abandoned = False
        """Whether the client knows that these ranks wait in vain."""

    def begin(self) -> None:
        environments = [self.envs[local_rank] for local_rank in range(self.nprocs)]
        self._node_connection.send({"kind": "start", **self._attempt}, json.dumps(environments).encode())
        while not self._pids:
            self._hear(None)

    def result(self) -> RunProcsResult | None:
        while self._hear(0.0):
            pass
        failed = {local_rank: status for local_rank, status in self._ended.items() if status != 0}
        if self._abandoned and not failed and len(self._ended) < self.nprocs:
            failed = {0: -signal.SIGTERM}
        if not failed and len(self._ended) < self.nprocs:
            return None
        self.close()
        result = RunProcsResult(stdouts=self.stdouts, stderrs=self.stderrs)
        if failed:
            result.failures = {
                local_rank: ProcessFailure(local_rank, self._pids[local_rank], status, self.error_files[local_rank])
                for local_rank, status in failed.items()
            }
        else:
            result.return_values = dict.fromkeys(range(self.nprocs))
        return result

    def pids(self) -> dict[int, int]:
        return self._pids

    def end(self, death_sig: signal.Signals, timeout: float) -> None:
        for number, patience in ((death_sig, float(timeout)), (signal.SIGKILL, None)):
            if len(self._ended) < len(self._pids):
                self._node_connection.send({"kind": "signal", "signal": int(number)})
                self._wait_for_all(patience)

    def _wait_for_all(self, patience: float | None) -> None:
        limit = None if patience is None else self._clock() + patience
        while len(self._ended) < len(self._pids):
            if not self._hear(wait_seconds(self._clock, limit)) and limit is not None and self._clock() >= limit:
                return

    def _hear(self, seconds: float | None) -> bool:
        """Process the node's messages; False if none arrived within `seconds`."""
        if not select.select([self._node_connection.connection], [], [], seconds)[0]:
            return False
        heard = self._node_connection.receive()
        if heard is None:
            raise SystemExit("the node is gone")
        for header, _ in heard:
            if header["kind"] == "started":
                self._pids = dict(enumerate(header["pids"]))
            elif header["kind"] == "exit":
                self._ended[header["local_rank"]] = header["status"]
            elif header["kind"] == "restart":
                self._abandoned = header["attempt"] == self._attempt["attempt"]
        return True
