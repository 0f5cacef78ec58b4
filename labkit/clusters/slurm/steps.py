"""The lab's agent on every node of an allocation, and the pipes to it: one job step per node."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from labkit.clusters.slurm import clients
from labkit.clusters.slurm.script import step_command
from labkit.transport import lines

SILENCE_SECONDS = 60.0
"""Time after which an agent without input ends: srun does not report that the notebook's machine is gone."""
_END_LIMIT_SECONDS = 5.0
_CHUNK_BYTES = 256 << 10
_KEPT_CHARACTERS = 4_000


def _environment() -> dict[str, str]:
    # c10d warns on every rank, about every connection, if nodes' addresses have no names
    return {"TORCH_CPP_LOG_LEVEL": "ERROR", **clients.environment()}


class Step:
    """One srun: the connection to one node."""

    def __init__(self, node: int, name: str, process: subprocess.Popen[bytes]) -> None:
        self.node, self.name, self.process = node, name, process
        assert process.stdin is not None
        self.stdin = process.stdin
        self.unsent = bytearray()
        self.lines = lines.Decoder()
        self.messages = ""
        """Last messages of srun and of the agent's stderr."""


class Steps:
    """Agents on `nodes` of job `job_id`. A thread transfers lines, and shows the agents that the notebook is alive."""

    def __init__(
        self, job_id: str, nodes: Sequence[str], command: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """command: starts an agent; node number, number of nodes and maximum silence are added.

        clock: measures the time until the agents are shown again that the notebook is alive, in seconds.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._selector.register(self._wake_up, selectors.EVENT_READ)
        self._closing = False
        self._steps: list[Step] = []
        self._thread: threading.Thread | None = None
        try:
            for node, name in enumerate(nodes):
                place = ["--node", str(node), "--nnodes", str(len(nodes)), "--silence", f"{SILENCE_SECONDS:g}"]
                self._start(node, name, step_command(job_id, node, [*command, *place]))
        except BaseException:
            self._end()
            raise

    def begin(self, on_line: Callable[[int, str], None], on_end: Callable[[Step], None]) -> None:
        """Start to transfer lines. `on_line(node, line)` and `on_end(step)` are called in the thread.

        When `on_end` is called, the step's srun has ended.
        """
        self._on_line, self._on_end = on_line, on_end
        self._thread = threading.Thread(target=self._serve, name="labkit slurm", daemon=True)
        self._thread.start()

    def _start(self, node: int, name: str, command: list[str]) -> None:
        process = subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C is for the notebook, which decides what happens to the ranks
            start_new_session=True,
        )
        step = Step(node, name, process)
        os.set_blocking(step.stdin.fileno(), False)
        self._steps.append(step)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, step)

    def writer(self, node: int) -> Callable[[str], None]:
        """A function that sends a line to node number `node`. It never blocks."""

        def write(line: str) -> None:
            with self._lock:
                self._steps[node].unsent += line.encode()
            self._wake()

        return write

    def close(self) -> None:
        """End every agent with all of its runs; return when their steps have ended, or after some seconds."""
        self._closing = True
        self._wake()
        if self._thread is None:
            self._end()
        else:
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or has ended
            os.write(self._waker, b"!")

    def _serve(self) -> None:
        sign_of_life_seconds = SILENCE_SECONDS / 5
        due = self._clock() + sign_of_life_seconds
        while not self._closing:
            for key, events in self._selector.select(max(0.0, due - self._clock())):
                if key.fd == self._wake_up:
                    os.read(self._wake_up, _CHUNK_BYTES)
                elif events & selectors.EVENT_READ:
                    self._receive(key.data, key)
            now = self._clock()
            with self._lock:
                for step in self._steps:
                    if now >= due:
                        step.unsent += b"" if step.unsent else b"\n"
                    self._send(step)
            due = due if now < due else now + sign_of_life_seconds
        self._end()

    def _send(self, step: Step) -> None:
        """Send as much as the pipe accepts now."""
        try:
            while step.unsent:
                del step.unsent[: os.write(step.stdin.fileno(), memoryview(step.unsent)[:_CHUNK_BYTES].tobytes())]
        except BlockingIOError:
            pass
        except (OSError, ValueError):  # it has ended; its output has the reason
            step.unsent.clear()
        waiting = step.stdin in self._selector.get_map()
        if step.unsent and not waiting:
            self._selector.register(step.stdin, selectors.EVENT_WRITE, step)
        elif waiting and not step.unsent:
            self._selector.unregister(step.stdin)

    def _receive(self, step: Step, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, _CHUNK_BYTES)
        if key.fileobj is step.process.stderr:
            step.messages = (step.messages + data.decode(errors="replace"))[-_KEPT_CHARACTERS:]
        elif data:
            for line in step.lines.feed(data):
                self._on_line(step.node, line.decode(errors="replace"))
        if not data:
            self._selector.unregister(key.fileobj)
            if not any(other.data is step and other.fileobj is not step.stdin for other in self._open()):
                step.process.wait()
                self._on_end(step)

    def _open(self) -> list[selectors.SelectorKey]:
        return list(self._selector.get_map().values())

    def _end(self) -> None:
        for step in self._steps:
            with contextlib.suppress(OSError):
                step.stdin.close()
        limit = time.monotonic() + _END_LIMIT_SECONDS
        for key in self._open():
            if key.data is None or key.fileobj is key.data.stdin:
                self._selector.unregister(key.fileobj)
        # an agent with unsent output ends only once it is read
        while self._open() and (left := limit - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if not os.read(key.fd, _CHUNK_BYTES):
                    self._selector.unregister(key.fileobj)
        for step in self._steps:
            try:
                step.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                # the second process of this srun then cancels the step
                step.process.kill()
                step.process.wait()
            for pipe in (step.process.stdout, step.process.stderr):
                if pipe is not None:
                    pipe.close()
        self._selector.close()
        os.close(self._wake_up)
        os.close(self._waker)
