"""A learner's JupyterLab on a socket that the hub has opened.

The server never binds an address itself: a socket in a folder that the learner can write to could be replaced by a
link, and the proxy, which runs outside, would follow it to any other socket of the machine.
"""

from __future__ import annotations

import socket
from typing import ClassVar

from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser

from labkit.hub import server as hub_server

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
    ServerOnSocket.descriptor = descriptor
    JupyterHubSingleUser.serverapp_class = ServerOnSocket
    hub_server.serve([])
