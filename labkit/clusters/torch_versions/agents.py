"""Changes to torch's elastic agent where it has no option."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.rendezvous import dynamic_rendezvous


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
