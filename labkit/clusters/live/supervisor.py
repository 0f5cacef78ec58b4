"""The supervisor of live ranks: the end of one affects no other, and the client can kill one."""

from __future__ import annotations

import os
import signal
from typing import Any

from labkit.clusters.forkserver.activity_monitor import ActivityMonitor
from labkit.clusters.forkserver.child_process import ChildProcess
from labkit.clusters.forkserver.supervisor import Supervisor


class LiveSupervisor(Supervisor):
    """Ends the ranks when the client is gone."""

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Handle two more requests: `kill` of one process, and `rest`: between cells nothing counts as a hang.

        `input` sets `hang_timeout`, the seconds of silence after which its cell counts as hanging.
        """
        kind = header["kind"]
        if kind == "kill":
            process = self._processes[header["process"]]
            if process.status is None:
                os.kill(process.pid, signal.SIGKILL)
        elif kind == "rest":
            self._activity = ActivityMonitor(self._board, None, self._clock)
        else:
            super()._obey(header, payload)
        if kind == "input":
            watched = all(len(hosted) == 1 for hosted in self._asked.ranks)
            self._activity = ActivityMonitor(self._board, header["hang_timeout"] if watched else None, self._clock)

    def _process_ended(self, process: ChildProcess, status: int) -> None:
        self._say_exit(process, status)
