"""Ranks that have nothing in common but the network: their supervisor hosts the store where they meet.

As torchrun's agent does; where ranks may have a file in common, that is quicker.
"""

from __future__ import annotations

import socket
from dataclasses import replace

from torch._C._distributed_c10d import TCPStore

from labkit.clusters.warm.supervisor import Supervisor


class StoreHost(Supervisor):
    """Of the ranks of one machine, whose `options["master"]` it sets."""

    def _begin(self, sockets: list[int]) -> None:
        # the ranks must know the port when they are forked, and a store has threads, which no fork should meet
        listening = socket.create_server(("127.0.0.1", 0), backlog=len(self._asked.ranks))
        port = listening.getsockname()[1]
        options = {**self._asked.options, "master": ("127.0.0.1", port, "run")}
        self._asked = replace(self._asked, options=options)
        super()._begin(sockets)
        self._store = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
