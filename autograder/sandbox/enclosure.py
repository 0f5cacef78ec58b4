"""One sandbox, for one submission: what starts ranks in it, what it has used up, and why it ended."""

from __future__ import annotations

import logging
import socket
from typing import IO

from autograder.sandbox.runner import Limits, Runner, Started
from autograder.sandbox.view import environment
from labkit.clusters.warm import WarmProcess


class Enclosure:
    """Made by `Sandbox.open`, to be used in a `with` statement. `warm` starts ranks in it."""

    def __init__(self, runner: Runner, limits: Limits, log: logging.Logger) -> None:
        self._runner = runner
        self._limits = limits
        self._log = log
        self.warm = WarmProcess(environment=environment(), launch=self._launch)
        self.warm.start()

    def _launch(self, control: socket.socket, errors: IO[bytes]) -> Started:
        return self._runner.start(self._limits, control, errors, lambda pid: None, self._log)

    def __enter__(self) -> Enclosure:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that is in it."""
        self.warm.close()
