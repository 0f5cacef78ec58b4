"""One submission's sandbox: its forkserver, its resource usage, and why it ended."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any

from autograder.sandbox.cgroups import Parents
from autograder.sandbox.limits import Limits
from autograder.sandbox.resource_accounting import ResourceAccounting, Usage
from autograder.sandbox.runner import Runner, SandboxHandle, SandboxRequest
from autograder.sandbox.view import environment
from autograder.sandbox.watchdog import watchdog
from labkit.clusters.forkserver.client import ForkServer, ForkServerDied
from labkit.clusters.forkserver.request import Request
from labkit.clusters.forkserver.session import Session
from labkit.clusters.virtual.hosts.entries import REMOTE


class SandboxInstance:
    """A sandbox made by `Sandbox.open`; use it in a `with` statement. `forkserver` starts ranks in it.

    It consists of one sandbox for judged calls on virtual ranks and, on demand, another for everything else, with
    shared resource accounting. Raises `SandboxUnavailable` if none can be made.
    """

    def __init__(self, runner: Runner, limits: Limits, parents: Parents | None, log: logging.Logger) -> None:
        self._runner = runner
        self._limits = limits
        self._log = log
        self._accounting = ResourceAccounting(limits, parents, log, runner.clock)
        self._lock = threading.Lock()
        self._started: dict[bool, SandboxHandle] = {}
        """Running sandboxes, by whether they are for virtual ranks."""
        self.ended = ""
        """Why the watchdog ended the sandbox; empty while it runs. Once set, `forkserver` raises `ForkServerDied`."""
        self.forkserver: ForkServer = _ForkServerPair(self._launch, self._accounting.seconds)
        try:
            self.forkserver.start()
        except BaseException:
            self._accounting.end()
            raise
        watchdog.watch(self)

    def _launch(self, virtual: bool, control: socket.socket, errors: IO[bytes]) -> SandboxHandle:
        if self.ended:
            raise ForkServerDied(f"the sandbox was ended: {self.ended}")
        started = self._runner.start(
            SandboxRequest(self._limits, virtual, self._accounting.begin, self._log), control, errors
        )
        with self._lock:
            self._started[virtual] = started
        return started

    def seconds(self) -> float:
        """Return the seconds passed for the submission, as if no other program had used its cores."""
        return self._accounting.seconds()

    def usage(self) -> Usage:
        """Return the submission's resource usage until now, or until it was closed."""
        if self._is_running():
            self._accounting.look()
        return self._accounting.usage()

    def look(self) -> None:
        """End sandboxes over their limits; the watchdog calls this."""
        with self._lock:
            if self._is_running() and not self.ended:
                self.ended = self._accounting.look()
                if self.ended:
                    for started in self._started.values():
                        started.kill()

    def end(self, why: str) -> None:
        """End it as its limits do; any thread may call this."""
        with self._lock:
            if not self.ended:
                self.ended = why
                for started in self._started.values():
                    started.kill()

    def _is_running(self) -> bool:
        return any(started.poll() is None for started in self._started.values())

    def __enter__(self) -> SandboxInstance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything in it. `usage()` keeps working."""
        watchdog.leave(self)
        with self._lock:
            if self._is_running():
                self._accounting.look()
        self.forkserver.close()
        self._accounting.end()


_MAX_RUN_BYTES = 256 << 20
"""Maximum bytes returned by all ranks of one call together: the judge holds them in memory."""


_PATIENCE_SECONDS = 3.0
"""Seconds granted to the supervisor of the ranks inside; the kernel then ends everything in the sandbox."""


class _ForkServerPair(ForkServer):
    """Two forkservers in one: each run goes to the sandbox prepared for it."""

    def __init__(
        self, launch: Callable[[bool, socket.socket, IO[bytes]], SandboxHandle], clock: Callable[[], float]
    ) -> None:
        def made(virtual: bool) -> dict[str, Any]:
            options = {"environment": environment(), "max_bytes": _MAX_RUN_BYTES, "patience": _PATIENCE_SECONDS}
            return {**options, "launch": partial(launch, virtual), "clock": clock, "shares_files": False}

        super().__init__(**made(True))
        self._others = ForkServer(**made(False))

    def open(self, asked: Request, sockets: Sequence[socket.socket | IO[bytes]] = ()) -> Session:
        return super().open(asked, sockets) if asked.entry == REMOTE else self._others.open(asked, sockets)

    def close(self) -> None:
        super().close()
        self._others.close()
