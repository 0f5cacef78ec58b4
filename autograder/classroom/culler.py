"""JupyterHub's idle culler, which asks the hub at the address that the hub gives its services, also if it is a socket.

The address for browsers is no use to it: the certificate there may be one that this machine does not know.
"""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import unquote, urlsplit

from jupyterhub_idle_culler import IdleCuller
from tornado.netutil import Resolver


class _SocketResolver(Resolver):
    """Resolves every host to one Unix socket."""

    def initialize(self, path: str) -> None:
        self._path = path

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, str]]:
        return [(socket.AF_UNIX, self._path)]


def main() -> None:
    """Stop idle servers until the hub ends. Arguments are the culler's."""
    address = urlsplit(os.environ["JUPYTERHUB_API_URL"])
    own = []
    if address.scheme == "http+unix":
        Resolver.configure(_SocketResolver, path=unquote(address.netloc))
        own = [f"--url=http://hub{address.path}"]
    IdleCuller.launch_instance([*sys.argv[1:], *own])


if __name__ == "__main__":
    main()
