"""The supervisor of ranks that stay: one that ends takes no other with it, and the client can have one killed."""

from __future__ import annotations

import os
import signal
from typing import Any

from labkit.clusters.warm.supervisor import Process, Supervisor


class LiveSupervisor(Supervisor):
    """Ends the ranks when the client is gone."""

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Beside what any supervisor obeys: `kill` of one process."""
        if header["kind"] != "kill":
            super()._obey(header, payload)
            return
        process = self._processes[header["process"]]
        if process.status is None:
            os.kill(process.pid, signal.SIGKILL)

    def _process_ended(self, process: Process, status: int) -> None:
        self._send({"kind": "exit", "process": process.index, "status": status})
