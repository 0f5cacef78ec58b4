"""Isolation of submissions: bubblewrap by default, or a site's own runner."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Protocol

import labkit
from autograder.sandbox import forkserver, sandbox_process, view
from autograder.sandbox.inside.order import Order
from autograder.sandbox.limits import Limits
from autograder.sandbox.unavailable import refusal
from labkit.private_folders import cache_environment

_LAUNCH = Path(labkit.__file__).parent / "clusters/forkserver/launch.py"


@dataclass(frozen=True)
class SandboxRequest:
    """A request for a sandbox."""

    limits: Limits
    virtual: bool
    """Whether all its runs are virtual ranks that are processes; otherwise they may differ."""
    on_arrival: sandbox_process.OnArrival
    """Called with the sandbox's first process before learners' code can run in it, so that it is accounted for."""
    log: logging.Logger


class SandboxHandle(Protocol):
    """A started sandbox, such as a `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """PID, on this machine, of a process of the sandbox or of one that contains all of it."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Runner(ABC):
    """Starts sandboxes. Chosen by `c.Sandbox.runner = "package.Class"`; created once, without arguments."""

    @abstractmethod
    def check(self) -> None:
        """Raise `SandboxUnavailable` if no sandbox can be started."""

    @abstractmethod
    def start(self, asked: SandboxRequest, control: socket.socket, errors: IO[bytes]) -> SandboxHandle:
        """Start a fresh sandbox in which `labkit.clusters.forkserver.server` serves `control` and prints into `errors`.

        Raises `SandboxUnavailable`.
        """

    def clock(self, pids: Callable[[], Iterable[int]]) -> Callable[[], float]:
        """Return the clock of one submission's time limits: seconds since now, as if no other program ran.

        pids: returns the submission's present processes and that of its judge.
        """
        from labkit.clusters.forkserver.load_clock import LinuxKernel, LoadClock  # not in `labkit hub`: imports torch

        return LoadClock(LinuxKernel(pids)).seconds


class CommandRunner(Runner):
    """Runs a command behind a prefix such as `apptainer exec --containall` or `podman run --preserve-fds=100`.

    The prefix must pass on open files, and isolate the network, files and other processes.
    """

    @abstractmethod
    def prefix(self, limits: Limits) -> Sequence[str]:
        """Return the command prefix."""

    def environment(self) -> Mapping[str, str]:
        """Return all environment variables in the sandbox."""
        return view.environment()

    def start(self, asked: SandboxRequest, control: socket.socket, errors: IO[bytes]) -> SandboxHandle:
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
    """No isolation: for trusted code where bubblewrap is missing."""

    def check(self) -> None:
        """Always succeed."""

    def prefix(self, limits: Limits) -> Sequence[str]:
        return ()

    def environment(self) -> Mapping[str, str]:
        own = {**os.environ, **cache_environment(os.environ)}
        return {**own, **view.environment(), "HOME": os.environ.get("HOME", "/"), "TMPDIR": "/tmp"}


class Bubblewrap(Runner):
    """Forks each sandbox, in its own namespaces, from a process in bubblewrap that has torch imported.

    Where namespaces cannot be nested in bubblewrap's, every sandbox runs in its own bubblewrap.
    """

    def __init__(self) -> None:
        self._nests = True
        self._warned: set[str] = set()

    def check(self) -> None:
        _probe()

    def start(self, asked: SandboxRequest, control: socket.socket, errors: IO[bytes]) -> SandboxHandle:
        users, limits = view.own_uids(), asked.limits
        order = Order(
            home=view.HOME,
            uid=None if users is None else secrets.choice(users),
            processes=limits.processes,
            data_bytes=limits.memory_bytes,
            file_bytes=limits.file_bytes,
            scratch_bytes=limits.scratch_bytes,
            scratch_files=limits.scratch_files,
            cpu_seconds=limits.cpu_seconds,
            virtual=asked.virtual,
            apart=limits.apart,
            network=not asked.virtual,
        )
        made = self._sandbox_process(order, asked, control, errors)
        for about, why in (
            ("Ranks have no /tmp of their own here (%s): they see how full the sandbox's is", made.no_private_folders),
            ("Only memory limits the number of files in memory here (%s)", made.files_not_limited),
        ):
            if why and about not in self._warned:
                self._warned.add(about)
                asked.log.warning(about, why)
        return made

    def _sandbox_process(
        self, order: Order, asked: SandboxRequest, control: socket.socket, errors: IO[bytes]
    ) -> sandbox_process.SandboxProcess:
        if self._nests:
            try:
                return forkserver.sandbox_forkserver().fork(order, control, errors, asked.on_arrival)
            except sandbox_process.SandboxNotMade as problem:
                self._nests = False
                forkserver.sandbox_forkserver().server.close()
                asked.log.warning(
                    "No namespaces within bubblewrap's here (%s): torch is imported for each submission", problem
                )
        return sandbox_process.single(order, control, errors, asked.on_arrival)


@cache
def _probe() -> None:
    """Start Python in bubblewrap once; raises `SandboxUnavailable` if that fails."""
    try:
        view_command = view.bubblewrap()
    except FileNotFoundError as problem:
        raise refusal(str(problem)) from None
    command = [*view_command, sys.executable, "-c", "import labkit; print('inside')"]
    tried = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if tried.stdout != "inside\n":
        raise refusal(f"bubblewrap does not work here: {tried.stderr.strip() or f'exit code {tried.returncode}'}")
