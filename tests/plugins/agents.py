"""Agents of several nodes, all on this machine, with pipes in place of srun."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from forkservers import environment
from waiting import wait_until

from labkit.clusters.agent import Nodes
from labkit.linux.clock import Clock


class Agents:
    """`processes[i]` is node i's agent; `nodes` is connected to all."""

    def __init__(self, nnodes: int, silence: float, clock: Clock) -> None:
        command = [sys.executable, "-P", "-m", "labkit.clusters.agent", "--nnodes", str(nnodes)]
        self.processes = [
            subprocess.Popen(
                [*command, "--node", str(node), "--silence", str(silence)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for node in range(nnodes)
        ]
        self.nodes = Nodes([f"node{i}" for i in range(nnodes)], [self._writer(p) for p in self.processes], clock)
        self._threads = [threading.Thread(target=self._read, args=(i,), daemon=True) for i in range(nnodes)]
        for thread in self._threads:
            thread.start()

    def _writer(self, process: subprocess.Popen[str]):  # type: ignore[no-untyped-def]
        def write(line: str) -> None:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()

        return write

    def _read(self, node: int) -> None:
        stdout = self.processes[node].stdout
        assert stdout is not None
        for line in stdout:
            self.nodes.feed(node, line)
        self.nodes.lost(node, f"its agent ended with exit code {self.processes[node].wait()}")


@contextmanager
def agents(
    nnodes: int,
    silence: float = 60.0,
    clock: Clock = time.monotonic,  # the product's
) -> Iterator[Agents]:
    """Start agents that have ended when the block has. clock: of the limits that their client keeps."""
    started = Agents(nnodes, silence, clock)
    try:
        yield started
    finally:
        for process in started.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in started.processes:
            wait_until(lambda process=process: process.poll() is not None)
