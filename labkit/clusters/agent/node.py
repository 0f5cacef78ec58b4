"""A node's end: runs a forkserver, and passes on messages of its client and of the supervisors of its runs."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import IO

import torch

from labkit.clusters.agent.plan import LaunchPlan
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.forkserver.session import Session
from labkit.clusters.run_store import RunStoreServer, new_secret
from labkit.linux.clock import Clock, wait_seconds
from labkit.transport import lines, pickled

_CHUNK_BYTES = 256 << 10


class NodeAgent:
    """Node `node` of `nnodes`. Its messages go to `out`, line by line, including the ranks' own output."""

    def __init__(
        self,
        node: int,
        nnodes: int,
        out: IO[str],
        port: int = 0,
        address: str = "127.0.0.1",
        secret: bytes = b"",
        clock: Clock = time.monotonic,
    ) -> None:
        """port, address, secret: of the store, which node 0 hosts if there are several nodes; see `RunStoreServer`.

        secret: empty for a new one, which this node's first message carries. clock: for `silence`.
        """
        self._node = node
        self._clock = clock
        self._out = out
        self._lock = threading.Lock()
        self._said = 0
        self._forkserver = ForkServer()
        # it imports torch while this process does
        self._forkserver.start()
        self._sessions: dict[str, Session] = {}
        self._selector = selectors.DefaultSelector()
        self._store: RunStoreServer | None = None
        self._new_secret = b""
        if nnodes > 1 and not node:
            # a pod's messages are its log, which others may read: a secret that was given is not in them
            self._new_secret = b"" if secret else new_secret()
            self._store = RunStoreServer(secret or self._new_secret, address, port)
        self._text = lines.Decoder()
        self._heard = 0.0
        self._ending = False

    def serve(self, commands: int, silence: float) -> None:
        """Process the lines on descriptor `commands`, until they end or none arrives for `silence` seconds."""
        self._say_ready()
        self._heard = self._clock()
        self._selector.register(commands, selectors.EVENT_READ, lambda: self._hear(commands))
        try:
            while not self._ending:
                left = wait_seconds(self._clock, self._heard + silence)
                # lines that arrived while this process was busy, for example with starting a run, are no silence
                if not left and not select.select([commands], [], [], 0)[0]:
                    return
                self._step(left)
        finally:
            self.close()

    def run_once(self, plan: LaunchPlan) -> None:
        """Run one plan to its end, or until SIGTERM."""
        self._say_ready()
        signal.signal(signal.SIGTERM, self._end_runs)
        try:
            self._begin(plan)
            while self._sessions:
                self._step(None)
        finally:
            self.close()

    def _end_runs(self, *_: object) -> None:
        for session in self._sessions.values():
            session.send({"kind": "end"})

    def close(self) -> None:
        """End every run, and the forkserver."""
        for session in self._sessions.values():
            session.close()
        self._forkserver.close()
        if self._store is not None:
            self._store.close()

    def _say_ready(self) -> None:
        self._say(
            "ready",
            node=self._node,
            host=socket.gethostname(),
            port=self._store.port if self._store else 0,
            secret=self._new_secret.hex(),
            cpus=len(os.sched_getaffinity(0)),
            gpus=torch.cuda.device_count(),
            torch=torch.__version__,
        )

    def _say(self, kind: str, data: bytes = b"", **fields: object) -> None:
        with self._lock:
            self._out.write(lines.line(kind, data, n=self._said, **fields))
            self._out.flush()
            self._said += 1

    def _step(self, seconds: float | None) -> None:
        for key, _ in self._selector.select(seconds):
            call: Callable[[], None] = key.data
            call()

    def _hear(self, commands: int) -> None:
        data = os.read(commands, _CHUNK_BYTES)
        self._heard = self._clock()
        self._ending = not data
        for text in self._text.feed(data):
            message = lines.read(text.decode())
            if message is not None:  # an empty line only shows that the client is alive
                self._obey(*message)

    def _obey(self, fields: dict[str, str], data: bytes) -> None:
        if fields["kind"] == "run":
            self._begin(pickled.loads(data))
            return
        session = self._sessions.get(fields["run"])
        if session is None:  # it has ended meanwhile
            return
        if fields["kind"] == "frames":
            with contextlib.suppress(OSError):  # it has just ended, which is read next
                session.connection.sendall(data)
        elif fields["kind"] == "stop":
            self._end(fields["run"])

    def _begin(self, plan: LaunchPlan) -> None:
        try:
            session = self._forkserver.open(plan.request(self._node, torch.cuda.device_count(), self._forkserver))
        except (RuntimeError, OSError) as error:  # errors at the start are reported to the learner
            self._say("refused", run=plan.run, text=f"{type(error).__name__}: {error}"[:2000])
            return
        self._sessions[plan.run] = session
        self._say("began", run=plan.run)

        def pass_on() -> None:
            if self._sessions.get(plan.run) is not session:  # it was stopped by a line that arrived at the same time
                return
            data = session.receive(0)
            for start in range(0, len(data or b""), _CHUNK_BYTES):
                self._say("frames", (data or b"")[start : start + _CHUNK_BYTES], run=plan.run)
            if data == b"":
                self._end(plan.run)

        self._selector.register(session.connection, selectors.EVENT_READ, pass_on)
        pass_on()

    def _end(self, run: str) -> None:
        session = self._sessions.pop(run)
        self._selector.unregister(session.connection)
        session.close()
        self._say("ended", run=run)
