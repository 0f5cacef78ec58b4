"""One rank of the local cluster, in its own fresh process."""

from __future__ import annotations

import functools
import itertools
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch.distributed as dist

from labkit.clusters import argument_transfer
from labkit.clusters.forkserver.entry import Entry, Reporter
from labkit.clusters.forkserver.rank_process import seconds, shared_file, slot
from labkit.clusters.job import Job
from labkit.clusters.local.groups import RecordingProcessGroup
from labkit.clusters.local.recording import MAX_EVENTS, Recorder
from labkit.clusters.program import execute
from labkit.clusters.run_store import RunStore, StoreAddress
from labkit.torch_versions.compilation import never_trace_lab, prepare_with
from labkit.torch_versions.groups import rendezvous_with, replace_groups_with
from labkit.torch_versions.stores import FileStore, PrefixStore, Store, TCPStore

_GROUPS_KEPT = 16
"""gloo takes 10 ms for each connection that it closes, one after the other; the end of a process closes all at once."""


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run `job` as one rank and report how it ended.

    options: `world_size`; `first_rank`, that of process 0 here; `local_world_size` and `gpus` of this machine;
    `backend`, used if the program names none (torch's own choice if empty); `master`, the `StoreAddress` of the store
    that all nodes share, address and port of a `TCPStore` and this run's name in it for ranks in a sandbox, None if
    ranks share a file; `recorded`, False for groups
    as torch creates them, to measure the lab's own against; `attempt`, for ranks that may be restarted: different each
    time.
    """
    rank: int = options["first_rank"] + index
    if sock is not None:
        job = argument_transfer.receive(sock, job, rank, options["world_size"])
    attempts = itertools.count()
    shared = functools.cache(lambda: shared_store(options))
    # a program may destroy its group and create another, which must not read the first one's keys
    start = options.get("attempt", 0)
    recorder = record_groups(
        rank, options, reporter, job.trace, lambda: PrefixStore(f"{start}/{next(attempts)}", shared())
    )
    # objects that a cell defines can be pickled: object collectives and torch.save look them up in this module
    main = sys.modules["__main__"] = ModuleType("__main__")
    recorder.computes()
    result = execute(job, rank, seconds, main)
    recorder.rests()
    if job.trace:
        tell_what_is_left_out(recorder, reporter)
        reporter.trace(recorder.trace())
    reporter.result(result if sock is None else argument_transfer.without_tensors(result))


ENTRY = Entry(main)


def record_groups(
    rank: int, options: Mapping[str, Any], reporter: Reporter, tracing: bool, store: Callable[[], Store]
) -> Recorder:
    """Make this process `rank`: the program's groups meet at a `store`, and its operations are recorded.

    Without `tracing` they are recorded only for its supervisor, which must know what hangs. The rank's program runs in
    this thread, between the recorder's `computes()` and `rests()`.
    """
    world_size: int = options["world_size"]

    def backend(requested: str) -> str:
        chosen: str = requested or options["backend"]
        gpus, ranks = options["gpus"], options["local_world_size"]
        # torch's own choice is nccl as soon as there is any GPU
        if gpus >= ranks or ("nccl" not in chosen and (chosen or not gpus)):
            return chosen or ("" if gpus else "gloo")
        share = f"; ranks share GPUs: cuda:{{LOCAL_RANK % {gpus}}}" if gpus else ""
        reporter.note(f"{ranks} ranks, {gpus} GPU{'s' * (gpus != 1)}: gloo is used, not nccl{share}")
        return "gloo"

    recorder = Recorder(rank, world_size, options["local_world_size"], seconds, slot(), tracing)
    destroyed_later: deque[dist.ProcessGroup] = deque(maxlen=_GROUPS_KEPT)

    def recorded(group: dist.ProcessGroup, backend: str, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        if backend == "gloo":
            # a rank whose program ends here must not break connections that others are still setting up
            group.barrier().wait()
            destroyed_later.append(group)
        if not options.get("recorded", True):
            return group
        return RecordingProcessGroup(group, recorder.joined(group.group_name, ranks, backend))

    rendezvous_with(lambda _: store(), lambda: rank, world_size)
    replace_groups_with(backend, recorded, recorder.making_a_group)
    time.sleep = recorder.without_sleep(time.sleep)
    prepare_with(never_trace_lab)
    return recorder


def tell_what_is_left_out(recorder: Recorder, reporter: Reporter) -> None:
    """Add a note if the trace is not complete."""
    if recorder.left_out:
        reporter.note(f"the trace has the first {MAX_EVENTS:,} events of each rank")


def shared_store(options: Mapping[str, Any]) -> Store:
    """The store where all ranks of the run meet."""
    world_size: int = options["world_size"]
    if options["master"] is None:
        return FileStore(shared_file(), world_size)
    if isinstance(options["master"], StoreAddress):
        return RunStore(options["master"])
    address, port, run = options["master"]
    return PrefixStore(run, TCPStore(address, port, world_size, is_master=False))
