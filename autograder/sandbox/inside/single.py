"""One sandbox in a bubblewrap of its own, for machines on which namespaces cannot be made within it."""

from __future__ import annotations

from typing import Any

from labkit.clusters.torch_versions import rehearse_groups
from labkit.clusters.warm.fresh import preparation

from . import room
from .order import Order

if __name__ == "__main__":
    given: dict[str, Any] = globals()["options"]
    rehearse_groups()
    order = Order.loads(given["order"])
    prepare = preparation(order.prepared) if order.prepared else None
    if prepare is not None:
        prepare()
    room.be(order, given["control"], given["told"], furnished=True)
