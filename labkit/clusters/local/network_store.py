"""The store where ranks that share only the network meet, hosted by their supervisor.

torchrun's agent does the same; ranks that can share a file are faster with that. It is torch's own store, which answers
everyone: these ranks are in a sandbox, whose network nobody else is in.
"""

from __future__ import annotations

import socket
from dataclasses import replace

from labkit.clusters.forkserver.supervisor import Supervisor
from labkit.torch_versions.stores import TCPStore


class StoreHost(Supervisor):
    """Supervisor of the ranks of one machine; sets their `options["master"]`."""

    def _begin(self, sockets: list[int]) -> None:
        # the ranks must know the port when they are forked, and a store has threads, which must not exist at a fork
        listening = socket.create_server(("127.0.0.1", 0), backlog=len(self._asked.ranks))
        port = listening.getsockname()[1]
        options = {**self._asked.options, "master": ("127.0.0.1", port, "run")}
        self._asked = replace(self._asked, options=options)
        super()._begin(sockets)
        self._store = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
