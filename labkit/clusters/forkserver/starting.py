"""The forkserver's process, started without importing torch.

It imports torch itself, for seconds, unless a zygote forks it. `begin` starts one before the notebook's kernel imports
torch, so that both import side by side; `ForkServer` takes it over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from labkit.forking import held
from labkit.forking.client import NoForkServer, fork
from labkit.forking.held import Begun, Process
from labkit.forking.request import Request
from labkit.private_folders import cache_environment
from labkit.zygote import ADDRESS

_LAUNCH = Path(__file__).parent / "launch.py"
# the forkserver itself must have no threads; a rank's own number is set when it starts
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

NAME = "rank forkserver"
"""Name of a forked forkserver, as `ps` shows it."""


def launch(
    control: socket.socket,
    errors: IO[bytes],
    command_prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a process that serves the other end of `control`. environment: None for this process's own."""
    if not command_prefix and environment is None and ADDRESS in os.environ:
        with contextlib.suppress(NoForkServer, ValueError):
            own = {**os.environ, **cache_environment(os.environ), **_SINGLE_THREADED}
            request = Request(_be_forked, None, own, os.getcwd(), NAME, prints=True)
            return fork(request, [errors.fileno(), control.fileno()], os.environ[ADDRESS])
    # -P: a learner's file called random.py must not shadow the library's
    python = [sys.executable, "-P", str(_LAUNCH), str(control.fileno())]
    if environment is None:
        environment = {**os.environ, **cache_environment(os.environ)}
    return subprocess.Popen(
        [*command_prefix, *python],
        env={**environment, **_SINGLE_THREADED},
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        pass_fds=[control.fileno()],
        # Ctrl-C and the end of a Jupyter kernel go to a whole process group; the forkserver ends by itself
        start_new_session=True,
    )


def _be_forked(_: None, own: list[int]) -> None:
    """Be a forkserver that a zygote has forked. own: the descriptor of the socket."""
    from labkit.clusters.forkserver import server  # the zygote has imported it; here it would bring torch

    server.main(own[0])


_begun: Begun | None = None
_begun_by: int | None = None
"""The process that has called `begin`."""


def begin() -> None:
    """Start the process that `taken` returns, once."""
    global _begun, _begun_by
    if _begun_by == os.getpid():
        return
    _begun_by = os.getpid()
    _begun = held.begin(launch)


def taken() -> Begun | None:
    """The process that `begin` has started in this process; None if there is none, or if it has been taken."""
    global _begun
    process, _begun = _begun, None
    return process if _begun_by == os.getpid() else None
