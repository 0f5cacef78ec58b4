"""torch's per-process state, kept for each rank whose thread it is."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import torch
from torch._C import _distributed_c10d as c10d_bindings
from torch.distributed import distributed_c10d as c10d


def refuse_cuda(reason: str) -> None:
    """Make operations that would put a tensor on a GPU of this machine raise RuntimeError(reason) instead."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(reason)

    # everything else in torch.cuda calls this before it uses a GPU
    torch.cuda._lazy_init = refuse
    # a separate function: torch.compile has other rules for this name, and refuses one function with two
    torch.cuda.set_device = lambda *_: refuse()
    torch.cuda.is_available = lambda: False


def refuse_rpc(reason: str) -> None:
    """Make `torch.distributed.rpc.init_rpc` raise RuntimeError(reason)."""
    from torch.distributed import rpc

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(reason)

    rpc.init_rpc = refuse


class _WorldPerThread(threading.local):
    """c10d's per-process state (`distributed_c10d._World`), kept for each thread."""

    def __init__(self, entered: Callable[[], object]) -> None:
        entered()
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []


def worlds_per_thread(entered: Callable[[], object]) -> None:
    """Give each thread its own default group and its own table of groups, as if it were a process.

    `entered` is called in each thread before its first use of groups, and may raise to refuse it.
    """
    c10d._world = _WorldPerThread(entered)  # type: ignore[assignment]  # same attributes, kept per thread
    c10d_bindings._set_thread_isolation_mode(True)  # type: ignore[attr-defined]  # not in torch's stubs


def hand_on_world() -> Callable[[], None]:
    """A function for a new thread of this one to call first, to share its process groups."""
    world = c10d._world
    if not isinstance(world, _WorldPerThread):
        return lambda: None
    mine = world.__dict__.copy()
    return lambda: world.__dict__.update(mine)


def tensor_handlers_per_thread() -> None:
    """Keep DTensor's custom handlers, to which `loss_parallel()` adds, separately for each thread."""
    from torch.distributed.tensor import DTensor

    dispatcher: Any = DTensor._op_dispatcher
    name = "_custom_op_handlers"
    shared = getattr(dispatcher, name)

    class Handlers(threading.local):
        def __init__(self) -> None:
            self.table = dict(shared)

    handlers = Handlers()
    # looked up before the attribute of the same name, by C++ too
    table = property(lambda _: handlers.table, lambda _, table: setattr(handlers, "table", table))
    setattr(type(dispatcher), name, table)


def meshes_per_rank() -> None:
    """Let the meshes of two ranks differ, as those of torch's own threaded group do, also if they have equal layouts.

    DTensor remembers by mesh how a tensor is redistributed, which depends on the rank's place in it.
    """
    from torch.distributed.device_mesh import DeviceMesh

    changed: Any = DeviceMesh
    create = changed.__init__

    @functools.wraps(create)
    def init(self: Any, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        self._thread_id = getattr(self, "_rank", None)  # compared with the ranks of the mesh

    changed.__init__ = init


def checkpoints_in_own_thread() -> None:
    """Make `async_save` write before it returns: its own thread, or process, would not be a rank."""
    from torch.distributed.checkpoint import _async_process_executor, _async_thread_executor

    def at_once(self: Any, staged: Any, **options: Any) -> Future[Any]:
        saved: Future[Any] = Future()
        saved.set_result(_async_thread_executor.save_wrapper(staged, **options))
        return saved

    thread: Any = _async_thread_executor._ThreadBasedAsyncCheckpointExecutor
    process: Any = _async_process_executor._ProcessBasedAsyncCheckpointExecutor
    thread.execute_save = process.execute_save = at_once
