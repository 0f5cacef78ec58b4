"""Process groups that a program makes itself, without `init_process_group` or `new_group`.

A library that replaces its group while it runs does so:

    group, gloo = dist.ProcessGroup(store, rank, size), dist.ProcessGroupGloo(store, rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.clusters.virtual.isolation import current
from labkit.clusters.virtual.torch_backend.process_group import VirtualProcessGroup
from labkit.clusters.virtual.torch_backend.store import VirtualStore
from labkit.torch_versions.groups import GlooOptions, ProcessGroup, construct_groups_as
from labkit.torch_versions.stores import Store


class ProcessGroupGloo(VirtualProcessGroup):
    """Replaces `torch.distributed.ProcessGroupGloo`. The members meet at `store`."""

    Options = _Options = GlooOptions

    def __init__(
        self, store: Store, rank: int, size: int, options: Any = None, timeout: timedelta | None = None
    ) -> None:
        # the fourth argument may be either, as for torch
        timeout = options if isinstance(options, timedelta) else timeout
        self.options = options if isinstance(options, GlooOptions) else GlooOptions()
        if timeout is not None:
            self.options._timeout = timeout
        name, ranks = _meet(store, rank, size)
        super().__init__("gloo", name, rank, ranks, self.options._timeout, current.endpoint())


class OwnProcessGroup(ProcessGroup):  # type: ignore[misc]  # typed as Any, see torch_versions
    """`torch.distributed.ProcessGroup(store, rank, size)`: becomes the virtual group that is registered with it."""

    def __init__(self, *where: Any) -> None:
        *_, rank, size = where  # torch's class takes no store if Python derives from it
        super().__init__(rank, size)

    def _register_backend(self, device: Any, kind: Any, backend: Any = None) -> None:
        if isinstance(backend, VirtualProcessGroup):
            self.__class__ = VirtualProcessGroup
            self.__dict__.update(backend.__dict__)
        else:
            super()._register_backend(device, kind, backend)


def install() -> None:
    """Make programs in this process construct groups of virtual ranks."""
    for module in (dist, distributed_c10d):
        vars(module)["ProcessGroupGloo"] = ProcessGroupGloo
    construct_groups_as(OwnProcessGroup)


def _meet(store: Store, rank: int, size: int) -> tuple[str, tuple[int, ...]]:
    """The new group's name, the same on all members, and their global ranks."""
    # one store may serve several groups, one after the other
    number = store.add(f"groups of rank {rank}", 1)
    me = current.endpoint().rank
    if rank == 0:
        others = [int(store.get(f"{number} rank {other}")) for other in range(1, size)]
        name = f"ProcessGroupGloo {VirtualStore('own groups').add('number', 1)}"
        store.set(f"{number} members", json.dumps([name, [me, *others]]))
    else:
        store.set(f"{number} rank {rank}", str(me))
    name, ranks = json.loads(store.get(f"{number} members"))
    return name, tuple(ranks)
