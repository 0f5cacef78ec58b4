"""All that depends on torch's version: the private parts of c10d that the clusters hook into. 2.11 to 2.14.

torch 2.13 calls `all_gather_single` and `reduce_scatter_single` what older versions call `_allgather_base` and
`_reduce_scatter_base`; process groups written in Python define both names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d_bindings
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers

GroupMaker = Callable[[str, str, int, int, tuple[int, ...], Any, Any], dist.ProcessGroup]
"""(backend asked for, group name, group rank, group size, global ranks, store, timeout) -> the process group."""


def make_groups_with(make: GroupMaker) -> None:
    """From now on every process group of this process comes from `make`, whatever backend the program asks for.

    `dist.get_backend()` still answers what was asked for: `gloo` where nothing was.
    """
    requested: list[str] = []

    def create(options: Any, _: Any) -> dist.ProcessGroup:
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        return make(
            requested[-1],
            options.group_id,
            options.group_rank,
            options.group_size,
            ranks,
            options.store,
            options.timeout,
        )

    dist.Backend.register_backend("labkit", create, extended_api=True, devices=["cpu", "cuda", "meta"])
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(size: int, rank: int, ranks: list[int], backend: Any, *args: Any, **options: Any) -> Any:
        asked = "gloo" if str(backend) in ("undefined", "labkit") else str(backend)
        requested.append(asked)
        try:
            group, store = original(size, rank, ranks, dist.Backend("labkit"), *args, **options)
        finally:
            requested.pop()
        if store is not None and group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (dist.Backend(asked), store)
        return group, store

    c10d._new_process_group_helper = helper


def rendezvous_with(store: Callable[[int], Any], rank: Callable[[], int], world_size: int) -> None:
    """`env://`, the default of init_process_group, gives `store(world_size)` and this rank at once."""

    def handler(url: str, timeout: Any = None, **options: Any) -> Iterator[tuple[Any, int, int]]:
        yield store(world_size), rank(), world_size
        raise RuntimeError("a second rendezvous is not possible with env:// here")

    _rendezvous_handlers["env"] = handler


def worlds_per_thread() -> None:
    """Each thread has its own default group and its own table of groups, as if it were a process."""
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    c10d._world = ThreadLocalWorld()  # type: ignore[assignment]  # same attributes, kept per thread
    c10d_bindings._set_thread_isolation_mode(True)


def reduction_name(op: Any) -> str:
    """`SUM`, `AVG`, ... of an operation or of the options that hold one."""
    return str(getattr(op, "op", op).name)


def run_after_backward(callback: Callable[[], None]) -> bool:
    """Call `callback` when the backward pass that is running in this thread ends; False when none is."""
    from torch.autograd import Variable

    try:
        Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]  # untyped in torch
    except RuntimeError:
        return False
    return True


# C++ classes whose overloads are meant for callers; in Python they are subclassed with one signature for each method
Work: Any = c10d_bindings.Work
ProcessGroup: Any = dist.ProcessGroup
