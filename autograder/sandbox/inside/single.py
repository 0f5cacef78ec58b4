"""One sandbox in its own bubblewrap, for machines that cannot nest namespaces."""

from __future__ import annotations

import gc
from typing import Any

from labkit.clusters.forkserver.rank_process import preparation
from labkit.torch_versions.prefork_warmup import warm_up_groups

from . import sandbox_process
from .order import Order

if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    warm_up_groups()
    order = Order(**given["order"])
    prepare = preparation(order.prepared) if order.prepared else None
    if prepare is not None:
        prepare()
    gc.enable()  # launch.py has disabled it
    sandbox_process.be(order, given["control"], given["told"], furnished=True)
