"""One sandbox, for one submission: what starts ranks in it, what it has used up, and why it ended."""

from __future__ import annotations

import logging
import socket
import threading
from typing import IO

from autograder.sandbox.books import Books, Usage
from autograder.sandbox.cgroups import Parents
from autograder.sandbox.limits import Limits
from autograder.sandbox.runner import Runner, Started
from autograder.sandbox.view import environment
from autograder.sandbox.watchdog import watchdog
from labkit.clusters.warm import WarmProcess, WarmProcessDied


class Enclosure:
    """Made by `Sandbox.open`, to be used in a `with` statement. `warm` starts ranks in it.

    Raises `SandboxUnavailable` where none can be made.
    """

    def __init__(self, runner: Runner, limits: Limits, parents: Parents | None, log: logging.Logger) -> None:
        self._runner = runner
        self._limits = limits
        self._log = log
        self._books = Books(limits, parents, log)
        self._lock = threading.Lock()
        self._started: Started | None = None
        self.ended = ""
        """Why the watchdog has ended it, in words; empty while it stands. Then `warm` raises `WarmProcessDied`."""
        self.warm = WarmProcess(environment=environment(), launch=self._launch)
        try:
            self.warm.start()
        except BaseException:
            self._books.end()
            raise
        watchdog.watch(self)

    def _launch(self, control: socket.socket, errors: IO[bytes]) -> Started:
        if self.ended:
            raise WarmProcessDied(f"the sandbox was ended: {self.ended}")
        started = self._runner.start(self._limits, control, errors, self._books.begin, self._log)
        with self._lock:
            self._started = started
        return started

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
                if self.ended and self._started is not None:
                    self._started.kill()

    def _standing(self) -> bool:
        return self._started is not None and self._started.poll() is None

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
