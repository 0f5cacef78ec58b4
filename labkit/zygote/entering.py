"""From the hub's zygote into a sandbox: a process that goes on in the namespaces of another one, as its own program.

The sandbox is made by a program that is started in it and waits; see `autograder.classroom.spawner`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from labkit.forking.request import function_of
from labkit.linux import namespaces, prctl

NAME = "sandbox watcher"
"""Name of the process that stays outside, as `ps` shows it."""


def main(arguments: dict[str, Any], own: list[int]) -> None:
    """Be the program that `arguments["program"]` names, in the namespaces of process `arguments["inside"]`.

    join: files of control groups, into which this process writes that it is to be counted there. arguments: of the
    program, which is imported from the sandbox's file system. Raises `OSError`.
    """
    for file in arguments["join"]:
        Path(file).write_text("0")
    namespaces.enter(arguments["inside"])
    pid = os.fork()  # only children are in the PID namespace
    if pid:
        # this process stays outside, and ends as the other one does
        prctl.set_name(NAME)
        for descriptor in own:
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.setsid()
    os.chdir("/")
    importlib.invalidate_caches()  # the same folders have other files here
    function_of(arguments["program"])(arguments["arguments"], own)
