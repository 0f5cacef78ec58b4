"""torch's elastic agent: public names for the methods that a subclass defines, and changes where it has no option."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.multiprocessing.api import PContext, RunProcsResult
from torch.distributed.elastic.rendezvous import dynamic_rendezvous


class Workers(PContext):
    """Worker processes of one node, from the agent's point of view."""

    @abstractmethod
    def begin(self) -> None:
        """Start the workers; return when they have process identifiers."""

    @abstractmethod
    def result(self) -> RunProcsResult | None:
        """Results of workers that have ended, once one has failed or all have ended; None before. Does not wait."""

    @abstractmethod
    def end(self, death_sig: signal.Signals, timeout: float) -> None:
        """Send the workers `death_sig`, and SIGKILL to those that are left after `timeout` seconds."""

    def _start(self) -> None:
        self.begin()

    def _poll(self) -> RunProcsResult | None:
        return self.result()

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.end(death_sig, timeout)


class ObservedAgent(local_elastic_agent.LocalElasticAgent):
    """torch's agent, which notifies a subclass before it starts and restarts its workers."""

    def workers_start(self, worker_group: WorkerGroup) -> None:
        """Called before the workers are started, for the first time or again."""

    def workers_restart(self) -> None:
        """Called before the workers are ended in order to start them again."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.workers_start(worker_group)
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self.workers_restart()
        super()._restart_workers(worker_group)


def start_workers_with(start: Callable[..., PContext]) -> None:
    """Make agents of this process start their workers with `start`, called with keywords like `start_processes`."""
    module: Any = local_elastic_agent
    module.start_processes = start


def poll_rendezvous_every(every: float, handler: dynamic_rendezvous.DynamicRendezvousHandler) -> None:
    """Make a node that waits for others poll `every` seconds instead of once a second.

    It also begins at once instead of after a random delay.
    """
    holder: Any = handler._state_holder
    holder._cache_duration = 0

    def delay(seconds: object) -> None:
        time.sleep(every)

    module: Any = dynamic_rendezvous
    module._delay = delay
    # torch finds the name of the method at every step by a search through all modules, for a log that nobody keeps
    module.get_method_name = lambda *_: ""
