"""One sandbox, from its first process on: says who it is, waits until it is counted, confines itself, serves.

What follows the word to go on is the submission's: nobody believes it any more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any, NoReturn

from labkit.clusters.warm import server

from . import namespaces
from .apart import keep_ranks_apart
from .confine import confine
from .order import Order


def fork(order: Order, control: int, errors: int, told: int) -> None:
    """In the template: fork a sandbox in namespaces of its own, which serves the socket `control`.

    errors: the file for what it prints. told: a socket on which the grader hears how it goes.
    """
    if os.fork() == 0:
        try:
            for ours, standard in ((errors, 1), (errors, 2)):
                os.dup2(ours, standard)
            _close_all_but({0, 1, 2, control, told})
            namespaces.leave_all(own_users=order.uid is None)
            if os.fork() == 0:
                be(order, control, told, furnished=False)
        except BaseException as problem:
            tell(told, {"error": str(problem)})
        finally:
            os._exit(0)


def be(order: Order, control: int, told: int, furnished: bool) -> NoReturn:
    """Be the first process of a sandbox. furnished: bubblewrap has made its namespaces and folders."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # the kernel adds which process this is, as the grader sees it
        tell(told, {"here": True})
        if not os.read(told, 1):
            os._exit(0)
        if not furnished:
            namespaces.furnish(order.home, order.scratch_bytes)
        os.chdir(order.home)
        confine(order)
        problem = keep_ranks_apart(order) if order.apart else ""
        tell(told, {"ready": True, "no_private_folders": problem})
        os.close(told)
        server.serve(socket.socket(fileno=control), prepared=order.prepared)
    except BaseException as problem:
        tell(told, {"error": str(problem)})
    finally:
        os._exit(0)


def tell(told: int, what: dict[str, Any]) -> None:
    try:
        os.write(told, json.dumps(what).encode())
    except OSError:  # it is closed: the sandbox stands, or the grader is gone
        return


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor that listdir itself used
                continue
