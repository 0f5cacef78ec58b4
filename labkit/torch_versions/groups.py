"""Process groups: creation, lookup, splitting and replacement, and their base classes."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d_bindings
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.nn.parallel import DistributedDataParallel

from labkit.torch_versions.agreed_groups import group_within

GroupMaker = Callable[[str, str, int, int, tuple[int, ...], Any, Any], dist.ProcessGroup]
"""(requested backend, group name, group rank, group size, global ranks, store, timeout) -> the process group."""


def group_of_functional_collective(given: Any) -> Any:
    """The process group that a functional collective gets, by its name or itself."""
    private: Any = c10d
    return private._resolve_process_group(given) if isinstance(given, str) else given


def make_groups_with(make: GroupMaker) -> None:
    """Create every process group of this process with `make`, whatever backend the program requests but `fake`.

    `dist.get_backend()` still returns the requested one: `gloo` if there was none. Groups of `fake` are torch's own.
    """
    requested: list[str] = []

    def create(options: Any, _: Any) -> dist.ProcessGroup:
        if not options.global_ranks_in_group:
            _inits.count += 1
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

    _log_without_nccl()
    if vars(c10d)["default_pg_nccl_timeout"] is None:
        # without NCCL torch would warn that it has none, and use gloo's
        vars(c10d)["default_pg_nccl_timeout"] = timedelta(minutes=10)
    split_groups_of_nccl()
    _nest_subgroups()
    _log_requested_backend()
    dist.Backend.register_backend("labkit", create, extended_api=True, devices=["cpu", "cuda", "meta"])
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(size: int, rank: int, ranks: list[int], backend: Any, *args: Any, **options: Any) -> Any:
        if str(backend) == "fake":  # nothing is communicated
            return original(size, rank, ranks, backend, *args, **options)
        asked = "gloo" if str(backend) in ("undefined", "labkit") else str(backend)
        requested.append(asked)
        try:
            group, store = original(size, rank, ranks, dist.Backend("labkit"), *args, **options)
        finally:
            requested.pop()
        if store is not None and group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (dist.Backend(asked), store)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(dist.Backend(asked)))
        return group, store

    c10d._new_process_group_helper = helper  # type: ignore[assignment]  # called by position only


class _Inits(threading.local):
    count = 0


_inits = _Inits()


def inits_of_this_rank() -> int:
    """Number of default groups that this rank has created with `make_groups_with`, including one under construction."""
    return _inits.count


def count_inits_from(number: int) -> None:
    """Raise this rank's count to at least `number`."""
    _inits.count = max(number, _inits.count)


def forget_inits() -> None:
    """Reset this rank's count of default groups."""
    _inits.count = 0


def split_groups_of_nccl() -> None:
    """Let `dist.split_group` split a group that requested `nccl`, without the GPU that torch requires first."""

    original = dist.split_group

    def split_group(parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
                    group_desc: Any = None, backend: Any = None) -> Any:  # fmt: skip
        if "nccl" not in dist.get_backend(parent_pg):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        if not split_ranks or not all(split_ranks):
            raise ValueError("split_ranks cannot be None or empty, nor can one of them")
        members = dist.get_process_group_ranks(parent_pg)
        chosen = [rank for part in split_ranks for rank in part]
        if len(set(chosen)) < len(chosen) or not all(0 <= rank < len(members) for rank in chosen):
            raise ValueError(f"split_ranks are ranks of the parent's {len(members)}, each in one group: {split_ranks}")
        mine = next((part for part in split_ranks if dist.get_rank(parent_pg) in part), None)
        if mine is None:
            return None
        return group_within(parent_pg, [members[rank] for rank in mine], backend, timeout, group_desc)

    replace_function("split_group", split_group)


def _nest_subgroups() -> None:
    """Let `dist.new_subgroups(group_size=1, group=...)` make groups of one group's ranks, while others make others.

    torch names a group by the number that were made before it. Ranks that make different groups under one name hang
    with it, and the lab reports that as an error. A group of one rank exchanges nothing, so each makes only its own.
    """
    original = dist.new_subgroups

    def new_subgroups(group_size: int | None = None, group: Any = None, timeout: Any = None, backend: Any = None,
                      pg_options: Any = None, group_desc: Any = None) -> Any:  # fmt: skip
        if group_size != 1:
            return original(group_size, group, timeout, backend, pg_options, group_desc)  # type: ignore[no-untyped-call]
        me = dist.get_rank()
        mine = dist.new_group([me], timeout, backend, pg_options, True, group_desc)
        others = dist.GroupMember.NON_GROUP_MEMBER
        return mine, [mine if rank == me else others for rank in dist.get_process_group_ranks(group)]

    replace_function("new_subgroups", new_subgroups)


def _log_without_nccl() -> None:
    """Leave NCCL's version out of c10d's log of an error in an `nccl` group: there may be no NCCL here."""
    original = c10d_logger._get_msg_dict

    @functools.wraps(original)
    def message(name: str, *args: Any, **options: Any) -> dict[str, Any]:
        try:
            return original(name, *args, **options)
        except AttributeError:
            return {"func_name": name}

    c10d_logger._get_msg_dict = message  # type: ignore[assignment]  # the same signature, less typed


def _log_requested_backend() -> None:
    """Let DistributedDataParallel's logging data name the backend that the program requests, and the rank's variables.

    torch's own are read in C++, where all groups are called `labkit` and all ranks of a process have one environment.
    """
    original: Callable[..., dict[str, Any]] = DistributedDataParallel._get_ddp_logging_data

    @functools.wraps(original)
    def logging_data(parallel: DistributedDataParallel) -> dict[str, Any]:
        data = {**original(parallel), "backend_name": dist.get_backend(parallel.process_group)}
        for name in ("master_addr", "master_port", "cuda_visible_devices", "torch_distributed_debug"):
            data[name] = os.environ.get(name.upper(), "N/A")
        if data["backend_name"] == "gloo":
            for name in ("gloo_socket_ifname", "gloo_device_transport"):
                data[name] = os.environ.get(name.upper(), "N/A")
            data["gloo_num_threads"] = 2
        return data

    DistributedDataParallel._get_ddp_logging_data = logging_data  # type: ignore[method-assign]


def rendezvous_with(
    store: Callable[[int], Any], rank: Callable[[], int], world_size: int, schemes: Iterable[str] = ("env",)
) -> None:
    """Make `env://`, the default of init_process_group, return `store(world_size)` and this rank at once.

    The other `schemes`, `tcp` and `file`, do the same, whatever address they name.
    """

    def handler(url: str, timeout: Any = None, **options: Any) -> Iterator[tuple[Any, int, int]]:
        for name, own in (("rank", rank()), ("world_size", world_size)):
            asked = parse_qs(urlsplit(url).query).get(name, [str(own)])[0]
            if asked not in (str(own), "None", "-1"):
                raise ValueError(
                    f"init_process_group({name}={asked}), but here it is {own}: leave it out, the environment says it"
                )
        yield store(world_size), rank(), world_size
        raise RuntimeError("a second rendezvous is not possible here")

    for scheme in schemes:
        _rendezvous_handlers[scheme] = handler


def reduction_name(op: Any) -> str:
    """`SUM`, `AVG`, ... of an operation or of options that hold one."""
    return str(getattr(op, "op", op).name)


def run_after_backward(callback: Callable[[], None]) -> bool:
    """Call `callback` when the backward pass that is running in this thread ends; False if none is running."""
    from torch.autograd import Variable

    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True


def backward_pass_number() -> int:
    """Number of the backward pass that is running in this thread; -1 if none is."""
    return torch._C._current_graph_task_id()


# C++ classes whose overloads are for callers; Python subclasses have one signature for each method
Work: Any = c10d_bindings.Work


class DelegatingWork(Work):  # type: ignore[misc]  # typed as Any
    """A `Work` that passes each call on to another one: the base of those that observe some of them."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self._real = real

    def wait(self, *timeout: Any) -> bool:
        done: bool = self._real.wait(*timeout)
        return done

    def is_completed(self) -> bool:
        done: bool = self._real.is_completed()
        return done

    def _source_rank(self) -> int:
        return int(self._real._source_rank())

    source_rank = _source_rank

    def is_success(self) -> bool:
        return bool(self._real.is_success())

    def exception(self) -> Any:
        return self._real.exception()

    def synchronize(self) -> None:
        self._real.synchronize()

    def result(self) -> Any:
        return self._real.result()

    def get_future(self) -> Any:
        return self._real.get_future()


ProcessGroup: Any = dist.ProcessGroup
AllgatherOptions = c10d_bindings.AllgatherOptions
GlooOptions: Any = vars(dist.ProcessGroupGloo)["_Options"]


def construct_groups_as(kind: type[Any]) -> None:
    """Make `ProcessGroup(...)` construct a `kind`, which derives from it. Other classes that do stay as they are."""
    original = ProcessGroup.__new__

    def new(asked: type[Any], *_: Any, **__: Any) -> Any:
        return original(kind if asked is ProcessGroup else asked)

    ProcessGroup.__new__ = new


def replace_groups_with(
    backend: Callable[[str], str],
    replacement: Callable[[dist.ProcessGroup, str, tuple[int, ...]], dist.ProcessGroup],
    making: Callable[[], AbstractContextManager[None]],
) -> None:
    """Let torch create each process group, for `backend(requested)`, and replace it everywhere in torch.

    `requested` is empty if the program names no backend. `replacement(group, its backend, global ranks)` may return the
    group itself. All this happens within `making()`.
    """
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(size: int, rank: int, ranks: list[int], asked: Any, *args: Any, **options: Any) -> Any:
        with making():
            chosen = dist.Backend(backend("" if str(asked) == "undefined" else str(asked)) or "undefined")
            group, store = original(size, rank, ranks, chosen, *args, **options)
            if store is None:  # this rank is not a member
                return group, store
            replaced = replacement(group, str(chosen), tuple(ranks) or tuple(range(size)))
            if replaced is not group:
                _replace_group(group, replaced)
            return replaced, store

    c10d._new_process_group_helper = helper  # type: ignore[assignment]  # the same signature, less typed


def _replace_group(group: dist.ProcessGroup, replaced: dist.ProcessGroup) -> None:
    world = c10d._world
    tables: list[dict[Any, Any]] = [
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
    ]
    for table in tables:
        if group in table:
            table[replaced] = table.pop(group)
    for tagged in world.tags_to_pg.values():
        tagged[:] = [replaced if g is group else g for g in tagged]
    c10d_bindings._unregister_process_group(group.group_name)
    c10d_bindings._register_process_group(group.group_name, replaced)


def follow_groups(begins: Callable[[], None], is_made: Callable[[dist.ProcessGroup | None], None]) -> None:
    """Call `begins` before this process creates a group or meets others for one, and `is_made` with the new group.

    `is_made(None)`: this process is not a member, or the creation failed. Call this after `replace_groups_with`.
    """
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(*args: Any, **options: Any) -> Any:
        begins()
        made = None
        try:
            group, store = original(*args, **options)
            made = None if store is None else group
            return group, store
        finally:
            is_made(made)

    c10d._new_process_group_helper = helper


def groups_of_this_rank() -> list[dist.ProcessGroup]:
    """Process groups of which this process is a member and which it has not destroyed."""
    return list(c10d._world.pg_map)


def group_count() -> int:
    """Number of groups created since the last default group: the next one's name."""
    return int(c10d._world.group_count)


def count_groups_from(number: int) -> None:
    """Set the next group's name to `number`, unless the count is already beyond it. All ranks must count alike."""
    c10d._world.group_count = max(number, group_count())


def gloo_group(store: Any, real: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new process group with gloo only, with the members, name and timeout of `real`; the members meet at `store`."""
    rank, size = real.rank(), real.size()
    options = real._get_backend(real._device_types[0]).options
    backend = dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
    backend.options.global_ranks_in_group = options.global_ranks_in_group
    backend.options.group_name = options.group_name
    group = dist.ProcessGroup(store, rank, size)
    for device in real._device_types:
        group._register_backend(device, dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    backend._set_sequence_number_for_group()
    group._set_group_name(real.group_name)
    group._set_group_desc(real.group_desc)
    return group


def dress_group(group: dist.ProcessGroup, real: dist.ProcessGroup) -> bool:
    """Give `group`, a process group written in Python, the name and the backends of `real`.

    Methods that its class does not define then work as on `real`. Returns whether one of the backends is NCCL's.
    """
    types = dist.ProcessGroup.BackendType
    has_nccl = False
    for device in real._device_types:
        backend = real._get_backend(device)
        is_nccl = backend.name() == "nccl"
        has_nccl = has_nccl or is_nccl
        group._register_backend(device, types.NCCL if is_nccl else types.GLOO, backend)
    group._set_default_backend(types.NCCL if has_nccl else types.GLOO)
    group._set_group_name(real.group_name)
    group._set_group_desc(real.group_desc)
    return has_nccl


def default_group() -> Any:
    """This thread's default process group, or None, by the fastest path."""
    return c10d._world.default_pg


def is_coalescing() -> bool:
    """Whether this thread is within a `_coalescing_manager`, which collects calls."""
    return bool(c10d._world.pg_coalesce_state)


def replace_function(name: str, replacement: Callable[..., Any]) -> None:
    """Replace `torch.distributed.<name>` with `replacement`, under its name and with its documentation."""
    replaced = functools.wraps(getattr(c10d, name))(replacement)
    # both modules hold the function; P2POp compares with c10d's
    setattr(c10d, name, replaced)
    setattr(dist, name, replaced)
