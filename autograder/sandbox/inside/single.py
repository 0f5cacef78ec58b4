"""One sandbox in its own bubblewrap, for machines that cannot nest namespaces."""

from __future__ import annotations

import gc
from typing import Any

from autograder.sandbox.inside import sandbox_process
from autograder.sandbox.inside.order import Order
from labkit.clusters.virtual.hosts.entries import REMOTE
from labkit.torch_versions.prefork_warmup import warm_up_groups

if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    warm_up_groups()
    order = Order(**given["order"])
    if order.virtual and REMOTE.prepare is not None:
        REMOTE.prepare()
    gc.enable()  # launch.py has disabled it
    sandbox_process.be(order, given["control"], given["told"], furnished=True)
