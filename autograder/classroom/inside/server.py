"""A learner's JupyterLab on a socket that the hub has opened.

The server never binds an address itself: a socket in a folder that the learner can write to could be replaced by a
link, and the proxy, which runs outside, would follow it to any other socket of the machine.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser

from labkit.jupyterlab import config_path, validation
from labkit.progress import LAB_EXTENSIONS, write_home

NAME = "notebook server"


class ServerOnSocket(ServerApp):
    """Jupyter's server, on a socket that is already open."""

    descriptor: ClassVar[int]

    def _find_http_port(self) -> None:
        """Look for no port: none is bound."""

    def _bind_http_server(self) -> None:
        opened = socket.socket(fileno=self.descriptor)
        opened.setblocking(False)
        self.http_server.add_socket(opened)


def main(descriptor: int) -> None:
    """Become the server; returns when it ends. descriptor: of a listening socket."""
    home = Path.home()
    os.chdir(home)  # only now: root without its capabilities may not
    with suppress(OSError):  # on a full disk the server is needed to make room
        write_home()  # also makes the link to the guides
    os.environ["JUPYTER_CONFIG_PATH"] = config_path("learning", home)
    validation.install()
    ServerOnSocket.descriptor = descriptor
    sys.argv[1:] = [f"--ServerApp.root_dir={home}", f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}"]
    JupyterHubSingleUser.serverapp_class = ServerOnSocket
    JupyterHubSingleUser.launch_instance()
