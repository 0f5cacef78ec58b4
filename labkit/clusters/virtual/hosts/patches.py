"""All that is replaced in torch, numpy and Python's library so that virtual ranks behave as processes with GPUs.

It happens in the processes that host ranks, after they have been forked, and never in a notebook's kernel or a judge.
Nothing is put back: these processes end with their run, and what is forked next is untouched. `labkit doctor --patches`
prints this table; a test compares it with what really changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from labkit.clusters.forkserver.entry import Reporter
from labkit.clusters.virtual.device import adam_updates, compiled, profiling, streams
from labkit.clusters.virtual.device.charging import count_fake_tensors
from labkit.clusters.virtual.device.torch_hooks import install_torch_hooks
from labkit.clusters.virtual.endpoints.endpoint import NO_CUDA, NO_RPC
from labkit.clusters.virtual.endpoints.race_detection import watch_reads_without_operator
from labkit.clusters.virtual.isolation import (
    clocks,
    current,
    environment,
    exits,
    modules,
    process_state,
    random_states,
    synchronization,
)
from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.isolation.started_threads import follow_threads
from labkit.clusters.virtual.torch_backend import fast_path, futures, own_groups, store
from labkit.clusters.virtual.torch_backend.process_group import VirtualProcessGroup
from labkit.torch_versions import dispatch, dtensors, fsdp, ranks, tensors
from labkit.torch_versions.compilation import leave_uncompiled
from labkit.torch_versions.groups import make_groups_with, rendezvous_with


@dataclass(frozen=True)
class Setting:
    """The process in which ranks will run."""

    world_size: int = 0
    account: bool = True
    """Whether computing takes time, and memory is counted."""
    fake: bool = False
    """Whether tensors have shapes only."""
    reporter: Reporter | None = None
    leave: Callable[[int], NoReturn] | None = None
    """Implements `os._exit` on a rank that is a thread."""
    rank: Callable[[], int] = lambda: current.endpoint().rank
    """Number of the rank that calls it."""


@dataclass(frozen=True)
class Patch:
    """One row of the table."""

    subject: str
    why: str
    apply: Callable[[Setting], object]
    replaces: tuple[str, ...] = ()
    """Names that have another value afterwards; `*` fits any part of a name. Empty: an entry in a table."""
    threads: bool = True
    """Whether it is needed where ranks are threads of one process."""
    processes: bool = True
    """Whether it is needed where each rank is a process."""
    needed: Callable[[Setting], bool] = lambda setting: True
    each_run: bool = False
    """Whether it is made anew for each run, where a process serves several."""


def _counted(setting: Setting) -> bool:
    return setting.account or setting.fake


def _fake(setting: Setting) -> bool:
    return setting.fake


def _environment(setting: Setting) -> None:
    assert setting.reporter is not None
    environment.separate(setting.reporter)


def _exits(setting: Setting) -> None:
    assert setting.leave is not None
    exits.separate(setting.leave)


def _rendezvous(setting: Setting) -> None:
    rendezvous_with(lambda _: store.rendezvous_store(), setting.rank, setting.world_size, ("env", "tcp", "file"))


def _virtual_groups(_: Setting) -> None:
    make_groups_with(
        lambda backend, name, rank, size, members, _, timeout: VirtualProcessGroup(
            backend, name, rank, members, timeout, current.endpoint()
        )
    )


PATCHES = (
    Patch(
        "hooks of parameters and optimizers",
        "a parameter's `.grad` and an optimizer's state are memory, and a step is time",
        lambda _: install_torch_hooks(),
        ("torch.optim.optimizer.Optimizer.add_param_group", "torch.utils.hooks.RemovableHandle.next_id"),
        needed=lambda setting: setting.account,
    ),
    Patch(
        "a mesh's own tensors",
        "the tensor in which a mesh keeps its ranks is on no GPU, and its values matter even if tensors are fake",
        lambda _: tensors.meshes_apart(),
        (
            "torch.distributed.device_mesh.DeviceMesh.*",
            "torch.distributed.device_mesh.init_device_mesh",
            "torch.distributed.init_device_mesh",
            "torch.distributed.fsdp._fully_shard._fsdp_init.init_device_mesh",
            "torch.distributed.tensor.init_device_mesh",
            "torch.distributed.tensor.device_mesh.init_device_mesh",
        ),
        needed=_counted,
    ),
    Patch(
        "DTensor: shapes and placements of results",
        "each rank would compute them again; one computation serves all",
        lambda _: dtensors.propagate_once(),
        ("torch.distributed.tensor._sharding_prop.ShardingPropagator.*",),
        needed=_counted,
    ),
    Patch(
        "DTensor: layouts of a mesh",
        "each rank would compute them again; one computation serves all",
        lambda _: dtensors.layouts_once(),
        ("torch.distributed._mesh_layout.*",),
        needed=_counted,
    ),
    Patch(
        "look-up of an operator's rule",
        "torch asks three times whether an operator has one; once is enough",
        lambda _: dispatch.find_rules_in_one_step(),
        needed=_counted,
    ),
    Patch(
        "fake tensors: counting",
        "their operators pass by the counters of others",
        lambda _: count_fake_tensors(),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: parts of a mesh",
        "each call copies them",
        lambda _: dtensors.parts_once(),
        (
            "torch.distributed.device_mesh.DeviceMesh.__getitem__",
            "torch.distributed.device_mesh.DeviceMesh.__getstate__",
        ),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: plans of redistributions",
        "each rank would make them again",
        lambda _: dtensors.plan_once(),
        ("torch.distributed.tensor._redistribute._gen_transform_infos_non_cached",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: a DTensor's specification",
        "its placements are known: no step needs a check",
        lambda _: dtensors.specs_in_one_step(),
        ("torch.distributed.tensor._dtensor_spec.DTensorSpec.__init__",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: signatures in `distribute_module`",
        "each rank would inspect the same functions",
        lambda _: dtensors.signatures_once(),
        ("torch.distributed.tensor._api.inspect",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: `DTensor.__init__`",
        "it only marks a tensor for compilers, and nothing is compiled",
        lambda _: dtensors.unmarked_for_compilers(),
        ("torch.distributed.tensor.DTensor.__init__",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: strides in `fully_shard`",
        "it asks three times for each parameter",
        lambda _: fsdp.strides_once(),
        ("torch.distributed.fsdp._fully_shard._fsdp_param.make_contiguous_strides_for",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: collectives of Python objects",
        "objects are pickled into tensors, whose values matter",
        lambda _: tensors.objects_without_modes(),
        (
            "torch.distributed.*_object",
            "torch.distributed.*_object_list",
            "torch.distributed.distributed_c10d.*_object*",
        ),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: updates of Adam",
        "an update like one before it has the same time and memory",
        lambda _: adam_updates.install(),
        ("torch.optim.adam.adam",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: chunks in `fully_shard`",
        "it makes the chunks of all ranks, and looks at its own",
        lambda _: fsdp.chunks_on_demand(),
        ("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "fake tensors: padding in `fully_shard`",
        "a fake shard that is padded already would be padded again",
        lambda _: fsdp.shards_padded_once(),
        ("torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.reset_sharded_param",),
        processes=False,
        needed=_fake,
    ),
    Patch(
        "tables of process groups",
        "each rank has its own default group and its own names of groups",
        lambda _: ranks.worlds_per_thread(lambda: here.rank is None or current.endpoint()),
        ("torch.distributed.distributed_c10d._world",),
        processes=False,
    ),
    Patch(
        "DTensor's custom handlers",
        "`loss_parallel()` on one rank must not change another rank's operators",
        lambda _: ranks.tensor_handlers_per_thread(),
        processes=False,
    ),
    Patch(
        "identity of meshes",
        "equal layouts of two ranks are two meshes",
        lambda _: ranks.meshes_per_rank(),
        ("torch.distributed.device_mesh.DeviceMesh.__init__",),
        processes=False,
    ),
    Patch(
        "log of FSDP 1's state dictionaries",
        "it times one step at a time in a process",
        lambda _: fsdp.untimed_fsdp_state_dicts(),
        ("torch.distributed.fsdp._debug_utils.SimpleProfiler.profile",),
        processes=False,
    ),
    Patch(
        "asynchronous checkpoints",
        "torch's own thread or process would be no rank: `async_save` writes before it returns",
        lambda _: ranks.checkpoints_in_own_thread(),
        (
            "torch.distributed.checkpoint._async_process_executor._ProcessBasedAsyncCheckpointExecutor.execute_save",
            "torch.distributed.checkpoint._async_thread_executor._ThreadBasedAsyncCheckpointExecutor.execute_save",
        ),
    ),
    Patch(
        "this machine's GPUs",
        "a virtual GPU is none of them: what would use one raises an error that says so",
        lambda _: ranks.refuse_cuda(NO_CUDA),
        ("torch.cuda._lazy_init", "torch.cuda.is_available", "torch.cuda.set_device"),
    ),
    Patch(
        "remote procedure calls",
        "they would pass by the modelled network: `init_rpc` raises an error that says so",
        lambda _: ranks.refuse_rpc(NO_RPC),
        ("torch.distributed.rpc.init_rpc",),
    ),
    Patch(
        "`torch.compile`",
        "compiled code would be timed by the operators of its model, and ranks would compile one after the other",
        lambda setting: leave_uncompiled() if setting.fake else compiled.install_on_threads(setting.world_size),
        ("torch.compile",),
        processes=False,
    ),
    Patch(
        "`torch.compile`",
        "compiled code is timed by the operators of its model",
        lambda _: compiled.install_on_processes(),
        ("torch.compile",),
        threads=False,
    ),
    Patch(
        "sends, receives and `all_reduce`",
        "the shortest way to the scheduler, for thousands of small messages",
        lambda _: fast_path.install(),
        tuple(
            f"{module}.{name}"
            for module in ("torch.distributed", "torch.distributed.distributed_c10d")
            for name in ("all_reduce", "irecv", "isend", "recv", "send")
        ),
        processes=False,
    ),
    Patch(
        "streams and events",
        "those of virtual GPUs have modelled time",
        lambda _: streams.install(),
        (
            "torch.cpu.Event",
            "torch.cpu.Stream",
            "torch.cpu.StreamContext",
            "torch.cpu.current_stream",
            "torch.cpu.stream",
        ),
    ),
    Patch(
        "profiler",
        "each rank records its own profile, in modelled time",
        lambda _: profiling.install(),
        (
            "torch._C._distributed_c10d.Reducer.prepare_for_backward",
            "torch.autograd._add_metadata_json",
            "torch.autograd.profiler.*",
            "torch.cuda.nccl.version",
        ),
    ),
    Patch(
        "stores",
        "virtual ranks meet at the scheduler",
        lambda _: store.install(),
        (
            "torch.distributed.FileStore",
            "torch.distributed.HashStore",
            "torch.distributed.PrefixStore",
            "torch.distributed.TCPStore",
            "torch.distributed.distributed_c10d.PrefixStore",
        ),
    ),
    Patch(
        "`ProcessGroupGloo`",
        "a program that constructs it gets a group of virtual ranks",
        lambda _: own_groups.install(),
        ("torch.distributed.ProcessGroupGloo", "torch.distributed.distributed_c10d.ProcessGroupGloo"),
    ),
    Patch(
        "waits for futures",
        "a rank that waits gives its turn to others",
        lambda _: futures.install(),
        ("torch.futures.collect_all", "torch.futures.wait_all"),
    ),
    Patch(
        "process groups",
        "every group is one of virtual ranks, whatever backend is named",
        _virtual_groups,
        (
            "torch.distributed.c10d_logger._get_msg_dict",
            "torch.distributed.distributed_c10d._new_process_group_helper",
            "torch.distributed.distributed_c10d.default_pg_nccl_timeout",
            "torch.distributed.distributed_c10d.new_subgroups",
            "torch.distributed.distributed_c10d.split_group",
            "torch.distributed.new_subgroups",
            "torch.distributed.split_group",
            "torch.nn.parallel.distributed.DistributedDataParallel._get_ddp_logging_data",
        ),
    ),
    Patch(
        "rendezvous",
        "ranks are there already: `env://` and its like return the scheduler's store at once",
        _rendezvous,
        each_run=True,
    ),
    Patch(
        "threads that a rank starts",
        "they work for that rank, one at a time",
        lambda _: follow_threads(),
        ("threading.Thread.__init__", "threading.Thread.start"),
    ),
    Patch(
        "environment, output and commands",
        "each rank has its own environment variables; what it and its commands print is reported as its own",
        _environment,
        (
            "os.environ",
            "os.environb",
            "os.system",
            "subprocess.Popen.__init__",
            "subprocess.Popen._execute_child",
            "subprocess.Popen.wait",
            "sys.stderr",
            "sys.stdout",
        ),
        processes=False,
    ),
    Patch(
        "imports",
        "each rank has its own `__main__`, exercises, modules of the learner's files, and packages",
        lambda _: modules.separate(),
        ("importlib.import_module",),
        processes=False,
    ),
    Patch(
        "clocks",
        "on a rank, time is virtual",
        lambda _: clocks.separate(),
        (
            *(f"time.{name}" for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")),
            *(f"time.{name}" for name in ("sleep", "time", "time_ns")),
            "timeit.default_timer",
        ),
    ),
    Patch(
        "locks, queues and waits",
        "a thread that waits gives its turn to others, and a wait that never ends is a deadlock with its diagnosis",
        lambda _: synchronization.separate(),
        (
            "*.Lock",
            "*.RLock",
            "*._allocate_lock",
            "multiprocessing.connection.Connection._recv",
            "queue.Queue.empty",
            "queue.Queue.get",
            "queue.SimpleQueue",
            "queue.time",
            "selectors.*.select",
            "threading.Event.is_set",
            "threading.Thread.is_alive",
            "threading.Thread.join",
            "threading._time",
            "torch.jit.Future.wait",
        ),
    ),
    Patch(
        "random numbers",
        "each rank draws from generators of its own",
        lambda _: random_states.separate(),
        ("numpy.random.*", "random.*", "torch.random.*"),
        processes=False,
    ),
    Patch(
        "warnings, log levels and modes of torch",
        "each rank has its own",
        lambda _: process_state.separate(),
        (
            "logging.*",
            "sys.setrecursionlimit",
            "torch.set_*",
            "torch.use_deterministic_algorithms",
            "warnings.*",
        ),
        processes=False,
    ),
    Patch(
        "draws without accounts",
        "where nothing is counted, no operator tells that a rank is about to draw",
        lambda _: process_state.follow(random_states.claim),
        processes=False,
        needed=lambda setting: not setting.account,
    ),
    Patch(
        "`repr(tensor)`",
        "it reads values without an operator, perhaps while a transfer still writes them",
        lambda _: watch_reads_without_operator(current.race_detector),
        ("torch.Tensor.__repr__",),
        processes=False,
    ),
    Patch(
        "exits and signals",
        "they concern the rank that calls, not all ranks of the process",
        _exits,
        (
            "atexit.register",
            "atexit.unregister",
            "os._exit",
            "os.kill",
            *(f"signal.{name}" for name in ("alarm", "getsignal", "raise_signal", "setitimer", "signal")),
        ),
        processes=False,
    ),
)
"""In the order in which they are made."""


def install_on_threads(setting: Setting) -> None:
    """Make the patches for ranks that are threads of this process. Once per process."""
    for patch in PATCHES:
        if patch.threads and patch.needed(setting):
            patch.apply(setting)


def install_on_processes() -> None:
    """Make the patches for ranks that are processes, forked from this one, with accounts. Once per process."""
    setting = Setting()
    for patch in PATCHES:
        if patch.processes and patch.needed(setting) and not patch.each_run:
            patch.apply(setting)


def install_for_run(setting: Setting) -> None:
    """Make those patches anew that each run of a rank that is a process needs."""
    for patch in PATCHES:
        if patch.processes and patch.each_run:
            patch.apply(setting)
