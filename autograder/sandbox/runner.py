"""How submissions are shut in: bubblewrap by default, or what a site puts in its place."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Protocol

from autograder.sandbox import room, template, view
from autograder.sandbox.inside.order import PREPARED, Order
from autograder.sandbox.limits import Limits
from autograder.sandbox.unavailable import refusal
from labkit.clusters import warm

_LAUNCH = Path(warm.__file__).with_name("launch.py")


@dataclass(frozen=True)
class Asked:
    """What a sandbox is wanted for."""

    limits: Limits
    entry: str
    """What all its runs will begin with, `package.module:function`; empty where they may differ."""
    on_arrival: room.OnArrival
    """To be called with its first process, before learners' code can run in it: it is then counted."""
    log: logging.Logger


class Started(Protocol):
    """A sandbox that has been started: a `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """A process of it, or around all of it, on this machine."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Runner(ABC):
    """Starts sandboxes. `c.Sandbox.runner = "package.Class"` names one; it is made without arguments, once."""

    @abstractmethod
    def check(self) -> None:
        """Raise `SandboxUnavailable` where it cannot start any."""

    @abstractmethod
    def start(self, asked: Asked, control: socket.socket, errors: IO[bytes]) -> Started:
        """A fresh sandbox in which `labkit.clusters.warm.server` serves `control` and prints into `errors`.

        Raises `SandboxUnavailable`.
        """


class CommandRunner(Runner):
    """Puts something before a command, as `apptainer exec --containall` or `podman run --preserve-fds=100` would do.

    What it is must pass open files on, and shut off the network, files and other processes: that is its only business.
    """

    @abstractmethod
    def prefix(self, limits: Limits) -> Sequence[str]:
        """What to put before the command."""

    def environment(self) -> Mapping[str, str]:
        """All environment variables inside."""
        return view.environment()

    def start(self, asked: Asked, control: socket.socket, errors: IO[bytes]) -> Started:
        command = [*self.prefix(asked.limits), sys.executable, "-P", str(_LAUNCH), str(control.fileno())]
        try:
            started = subprocess.Popen(
                command,
                env=dict(self.environment()),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[control.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise refusal(f"{command[0]} does not start: {error}") from None
        asked.on_arrival(started.pid)
        return started


class NoIsolation(CommandRunner):
    """Shuts nothing in: for code that is trusted, where bubblewrap is missing."""

    def check(self) -> None:
        """It always can."""

    def prefix(self, limits: Limits) -> Sequence[str]:
        return ()

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **view.environment(), "HOME": os.environ.get("HOME", "/"), "TMPDIR": "/tmp"}


class Bubblewrap(Runner):
    """Forks each sandbox, in namespaces of its own, from a process in bubblewrap that has torch imported.

    Where namespaces cannot be made within bubblewrap's, every sandbox is a bubblewrap of its own.
    """

    def __init__(self) -> None:
        self._nests = True
        self._has_warned = False

    def check(self) -> None:
        _probe()

    def start(self, asked: Asked, control: socket.socket, errors: IO[bytes]) -> Started:
        users, limits = view.own_uids(), asked.limits
        order = Order(
            home=view.HOME,
            uid=None if users is None else secrets.choice(users),
            processes=limits.processes,
            data_bytes=limits.memory_bytes,
            file_bytes=limits.file_bytes,
            scratch_bytes=limits.scratch_bytes,
            cpu_seconds=limits.cpu_seconds,
            prepared=asked.entry if asked.entry == PREPARED else "",
            apart=limits.apart,
            network=asked.entry != PREPARED,
        )
        made = self._room(order, asked, control, errors)
        if made.no_private_folders and not self._has_warned:
            self._has_warned = True
            asked.log.warning(
                "Ranks have no /tmp of their own here (%s): they see how full the sandbox's is",
                made.no_private_folders,
            )
        return made

    def _room(self, order: Order, asked: Asked, control: socket.socket, errors: IO[bytes]) -> room.Room:
        if self._nests:
            try:
                return template.template().fork(order, control, errors, asked.on_arrival)
            except room.NotMade as problem:
                self._nests = False
                template.template().close()
                asked.log.warning(
                    "No namespaces within bubblewrap's here (%s): torch is imported for each submission", problem
                )
        return room.single(order, control, errors, asked.on_arrival)


@cache
def _probe() -> None:
    """Start Python in bubblewrap once; raises `SandboxUnavailable` when that fails."""
    try:
        view_command = view.bubblewrap()
    except FileNotFoundError as problem:
        raise refusal(str(problem)) from None
    command = [*view_command, sys.executable, "-c", "import labkit; print('inside')"]
    tried = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if tried.stdout != "inside\n":
        raise refusal(f"bubblewrap does not work here: {tried.stderr.strip() or f'exit code {tried.returncode}'}")
