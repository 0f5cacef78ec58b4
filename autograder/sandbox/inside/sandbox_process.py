"""One sandbox process, from its start: report itself, wait until accounted for, confine itself, serve.

Anything it reports after the permission to go on comes from the submission and is not trusted.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any, NoReturn

from autograder.sandbox.inside import namespaces
from autograder.sandbox.inside.apart import keep_ranks_apart
from autograder.sandbox.inside.confine import confine
from autograder.sandbox.inside.order import Order
from labkit.clusters.forkserver import server
from labkit.clusters.virtual.hosts.entries import REMOTE
from labkit.transport import datagrams


def make(fields: dict[str, Any], own: list[int]) -> None:
    """See `programs.make`."""
    order, (control, progress) = Order(**fields), own
    try:
        namespaces.leave_all(own_users=order.uid is None)
        if os.fork() == 0:
            be(order, control, progress, furnished=False)
    except BaseException as problem:
        report(progress, {"error": str(problem)})
    finally:
        os._exit(0)


def be(order: Order, control: int, progress: int, furnished: bool) -> NoReturn:
    """Run as the first process of a sandbox. furnished: whether bubblewrap has made its namespaces and folders."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # the kernel adds the sender's pid, as the grader sees it
        report(progress, {"here": True})
        if not os.read(progress, 1):
            os._exit(0)
        not_limited = ""
        if furnished:
            not_limited = namespaces.limit_files((*namespaces.SHARED_SCRATCH, order.home), order.scratch_files)
        else:
            namespaces.furnish(order.home, order.scratch_bytes, order.scratch_files)
        os.chdir(order.home)
        confine(order)
        problem = keep_ranks_apart(order) if order.apart else ""
        report(progress, {"ready": True, "no_private_folders": problem, "files_not_limited": not_limited})
        os.close(progress)
        server.serve(socket.socket(fileno=control), prepared=REMOTE.prepare if order.virtual else None)
    except BaseException as problem:
        report(progress, {"error": str(problem)})
    finally:
        os._exit(0)


def report(progress: int, message: dict[str, Any]) -> None:
    try:
        os.write(progress, datagrams.encode(message))
    except OSError:  # closed: the sandbox is running, or the grader is gone
        return
