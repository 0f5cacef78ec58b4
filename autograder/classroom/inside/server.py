"""A learner's JupyterLab on a socket that the hub has opened.

The server never binds an address itself: a socket in a folder that the learner can write to could be replaced by a
link, and the proxy, which runs outside, would follow it to any other socket of the machine.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from enclosed import seccomp  # autograder/sandbox/inside, under its name in the sandbox
from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser

from labkit.jupyterlab import config_path
from labkit.linux import capabilities, prctl
from labkit.progress import LAB_EXTENSIONS, write_home

from . import validation


class ServerOnSocket(ServerApp):
    """Jupyter's server, on a socket that is already open."""

    descriptor: ClassVar[int]

    def _find_http_port(self) -> None:
        """Look for no port: none is bound."""

    def _bind_http_server(self) -> None:
        opened = socket.socket(fileno=self.descriptor)
        opened.setblocking(False)
        self.http_server.add_socket(opened)


def drop_privileges(uid: int | None, processes: int, file_bytes: int) -> None:
    """Leave this process, and everything it starts, without privileges. Raises `OSError`."""
    os.umask(0o022)
    capabilities.empty_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    capabilities.clear()
    prctl.gain_no_privileges()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid is not None:  # otherwise the limit would count all processes of the user who started the hub
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    seccomp.install(seccomp.for_this_machine(seccomp.filter_program))
    # memory that is in no process and no file would be in no account
    seccomp.install(seccomp.for_this_machine(seccomp.no_meeting_but_on_the_network))


def main(given: dict[str, Any]) -> None:
    """Become the server; does not return. given: see `learner_view.command`."""
    drop_privileges(given["uid"], given["processes"], given["file_bytes"])
    home = Path.home()
    os.chdir(home)  # only now: root without its capabilities may not
    with suppress(OSError):  # on a full disk the server is needed to make room
        write_home()  # also makes the link to the guides
    os.environ["JUPYTER_CONFIG_PATH"] = config_path("learning", home)
    validation.install()
    ServerOnSocket.descriptor = given["socket"]
    sys.argv[1:] = [f"--ServerApp.root_dir={home}", f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}"]
    JupyterHubSingleUser.serverapp_class = ServerOnSocket
    JupyterHubSingleUser.launch_instance()
