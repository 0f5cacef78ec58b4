"""torch's elastic agent, in the places where it does not ask how it should be done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.rendezvous import dynamic_rendezvous


def start_workers_with(start: Callable[..., PContext]) -> None:
    """Agents of this process start their workers with `start`, called by keyword as `start_processes` is."""
    module: Any = local_elastic_agent
    module.start_processes = start


def poll_rendezvous_every(every: float, handler: dynamic_rendezvous.DynamicRendezvousHandler) -> None:
    """A node that waits for others looks for them `every` so many seconds, torch's own way is once a second.

    Nor does it begin after a random while.
    """
    holder: Any = handler._state_holder
    holder._cache_duration = 0

    def delay(seconds: object) -> None:
        time.sleep(every)

    module: Any = dynamic_rendezvous
    module._delay = delay
    # of every step it writes down the name of the method: a search through all modules, for a log that nobody keeps
    module.get_method_name = lambda *_: ""
