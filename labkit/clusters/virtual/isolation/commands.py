"""Commands that a rank starts: they have its environment, and what they write is its output."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import threading
from typing import Any

from labkit.clusters.forkserver.entry import Reporter
from labkit.clusters.virtual.isolation.current import here, is_forked

_SECONDS_FOR_OUTPUT = 1.0
"""Time limit for the output of a command that has ended: what it has started may keep its streams open."""
_start_thread = threading.Thread.start
"""Original `start`, for threads that are not a rank's own; see started_threads.follow_threads."""
_ENVIRONMENT = 7
"""Index of the environment among the arguments of `Popen._execute_child`, which are given by position, self first."""
_READERS = "labkit_output_readers"
"""Attribute of a command: the threads that report its output."""


def separate(reporter: Reporter) -> None:
    """Give commands that a rank starts its environment, and report their output as the rank's."""
    _with_environment()
    _with_output(reporter)
    _system_by_subprocess()


def _with_environment() -> None:
    Popen: Any = subprocess.Popen
    start = Popen._execute_child

    @functools.wraps(start)
    def start_for_rank(*arguments: Any) -> None:
        if here.rank is not None and arguments[_ENVIRONMENT] is None:
            arguments = (*arguments[:_ENVIRONMENT], dict(os.environ), *arguments[_ENVIRONMENT + 1 :])
        start(*arguments)

    Popen._execute_child = start_for_rank


def _with_output(reporter: Reporter) -> None:
    Popen: Any = subprocess.Popen
    create, wait = Popen.__init__, Popen.wait

    @functools.wraps(create)
    def create_for_rank(self: Any, *args: Any, **kwargs: Any) -> None:
        if here.rank is None or is_forked():
            create(self, *args, **kwargs)
            return
        arguments = inspect.signature(create).bind(self, *args, **kwargs).arguments
        # the process's own streams are common to all ranks
        inherited = [name for name in ("stdout", "stderr") if arguments.get(name) is None]
        pipes = {name: os.pipe() for name in inherited}
        try:
            create(**{**arguments, **{name: end for name, (_, end) in pipes.items()}})
        finally:
            for _, end in pipes.values():
                os.close(end)
            readers = []
            for name, (end, _) in pipes.items():
                readers.append(threading.Thread(target=_report, args=(end, here.rank, name, reporter), daemon=True))
                _start_thread(readers[-1])
            setattr(self, _READERS, readers)

    @functools.wraps(wait)
    def wait_for_output(self: Any, timeout: float | None = None) -> Any:
        code = wait(self, timeout)
        for reading in vars(self).pop(_READERS, ()):
            reading.join(_SECONDS_FOR_OUTPUT)
        return code

    Popen.__init__, Popen.wait = create_for_rank, wait_for_output


def _system_by_subprocess() -> None:
    system = os.system

    @functools.wraps(system)
    def system_for_rank(command: str) -> int:
        if here.rank is None or is_forked():
            return system(command)
        code = subprocess.call(command, shell=True)
        return -code if code < 0 else code << 8

    vars(os)["system"] = system_for_rank


def _report(end: int, rank: Any, name: str, reporter: Reporter) -> None:
    """Report what a command writes as output of the rank that started it, until it ends."""
    with open(end, errors="replace") as written:
        while text := written.readline():
            reporter.output(rank.number, name, text)
