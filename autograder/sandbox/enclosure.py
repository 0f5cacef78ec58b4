"""One sandbox, for one submission: what starts ranks in it, what it has used up, and why it ended."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any

from autograder.sandbox.books import Books, Usage
from autograder.sandbox.cgroups import Parents
from autograder.sandbox.inside.order import PREPARED
from autograder.sandbox.limits import Limits
from autograder.sandbox.runner import Asked, Runner, Started
from autograder.sandbox.view import environment
from autograder.sandbox.watchdog import watchdog
from labkit.clusters.warm import Session, WarmProcess, WarmProcessDied
from labkit.clusters.warm.request import Request


class Enclosure:
    """Made by `Sandbox.open`, to be used in a `with` statement. `warm` starts ranks in it.

    It is one sandbox for judged calls on virtual ranks and, once it is needed, another for all else, with one account.
    Raises `SandboxUnavailable` where none can be made.
    """

    def __init__(self, runner: Runner, limits: Limits, parents: Parents | None, log: logging.Logger) -> None:
        self._runner = runner
        self._limits = limits
        self._log = log
        self._books = Books(limits, parents, log)
        self._lock = threading.Lock()
        self._started: dict[str, Started] = {}
        """The sandboxes that stand, by what they are prepared for."""
        self.ended = ""
        """Why the watchdog has ended it, in words; empty while it stands. Then `warm` raises `WarmProcessDied`."""
        self.warm: WarmProcess = _Warm(self._launch, self._books.seconds)
        try:
            self.warm.start()
        except BaseException:
            self._books.end()
            raise
        watchdog.watch(self)

    def _launch(self, entry: str, control: socket.socket, errors: IO[bytes]) -> Started:
        if self.ended:
            raise WarmProcessDied(f"the sandbox was ended: {self.ended}")
        started = self._runner.start(Asked(self._limits, entry, self._books.begin, self._log), control, errors)
        with self._lock:
            self._started[entry] = started
        return started

    def seconds(self) -> float:
        """Time that has passed for the submission, as if no other program had taken a core from it."""
        return self._books.seconds()

    def usage(self) -> Usage:
        """What the submission has used until now, or until it was closed."""
        if self._standing():
            self._books.look()
        return self._books.usage()

    def look(self) -> None:
        """For the watchdog: end what has used up too much."""
        with self._lock:
            if self._standing() and not self.ended:
                self.ended = self._books.look()
                if self.ended:
                    for started in self._started.values():
                        started.kill()

    def _standing(self) -> bool:
        return any(started.poll() is None for started in self._started.values())

    def __enter__(self) -> Enclosure:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that is in it. `usage()` still tells what it has used."""
        watchdog.leave(self)
        with self._lock:
            if self._standing():
                self._books.look()
        self.warm.close()
        self._books.end()


_MAX_RUN_BYTES = 256 << 20
"""Of what all ranks of one call return together: the judge holds it, beside that of other submissions."""


_PATIENCE_SECONDS = 3.0
"""For what watches over the ranks inside: the kernel ends all in a sandbox, so nothing is lost with it."""


class _Warm(WarmProcess):
    """Two in one: runs go to the sandbox that is prepared for them."""

    def __init__(self, launch: Callable[[str, socket.socket, IO[bytes]], Started], clock: Callable[[], float]) -> None:
        def made(entry: str) -> dict[str, Any]:
            options = {"environment": environment(), "max_bytes": _MAX_RUN_BYTES, "patience": _PATIENCE_SECONDS}
            return {**options, "launch": partial(launch, entry), "clock": clock, "shares_files": False}

        super().__init__(**made(PREPARED))
        self._others = WarmProcess(**made(""))

    def open(self, asked: Request, sockets: Sequence[socket.socket | IO[bytes]] = ()) -> Session:
        return super().open(asked, sockets) if asked.entry == PREPARED else self._others.open(asked, sockets)

    def close(self) -> None:
        super().close()
        self._others.close()
