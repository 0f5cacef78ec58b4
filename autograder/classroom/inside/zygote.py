"""A learner's zygote: the first process of the learner's own in the sandbox, which forks the server and the kernels.

The hub's zygote has forked it; it has everything imported already, and drops all privileges before it does anything.
"""

from __future__ import annotations

import os
from typing import Any

from autograder.classroom.inside import privileges
from labkit.forking.server import Server, listen, start_afresh
from labkit.linux import prctl
from labkit.zygote import ADDRESS


def main(given: dict[str, Any], own: list[int]) -> None:
    """Fork the server, then serve; returns in forked processes only. own: the server's socket, and its lifeline.

    given: see `learner_view.options`. The sandbox ends when nobody has the lifeline open any more: with the server.
    """
    privileges.drop(given["uid"], given["processes"], given["file_bytes"])
    prctl.set_dumpable(True)  # to the learner its memory is no secret, and /proc is needed
    listening = listen(os.environ[ADDRESS])  # before there is a server that asks
    if os.fork() == 0:
        listening.close()
        start_afresh()
        _serve(own[0])
        return
    for descriptor in own:
        os.close(descriptor)
    prctl.set_name("zygote")
    program = Server(listening).serve()
    assert program is not None  # a server that listens does not end by itself
    program()


def _serve(descriptor: int) -> None:
    """Be the learner's server."""
    from autograder.classroom.inside import server  # the hub, which names `main`, needs no Jupyter server

    prctl.set_name(server.NAME)
    server.main(descriptor)
