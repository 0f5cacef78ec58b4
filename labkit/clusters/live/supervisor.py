"""The supervisor of ranks that stay: one that ends takes no other with it, and the client can have one killed."""

from __future__ import annotations

import os
import signal
from typing import Any

from labkit.clusters.warm.forked import Process
from labkit.clusters.warm.silence import Silence
from labkit.clusters.warm.supervisor import Supervisor


class LiveSupervisor(Supervisor):
    """Ends the ranks when the client is gone."""

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Beside what any supervisor obeys: `kill` of one process; `rest`: between cells nobody hangs.

        `input` says after how many seconds of silence its cell hangs: `hang_timeout`.
        """
        kind = header["kind"]
        if kind == "kill":
            process = self._processes[header["process"]]
            if process.status is None:
                os.kill(process.pid, signal.SIGKILL)
        elif kind == "rest":
            self._silence = Silence(self._board, None)
        else:
            super()._obey(header, payload)
        if kind == "input":
            watched = all(len(hosted) == 1 for hosted in self._asked.ranks)
            self._silence = Silence(self._board, header["hang_timeout"] if watched else None)

    def _process_ended(self, process: Process, status: int) -> None:
        self._say_exit(process, status)
