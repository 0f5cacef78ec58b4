"""One rank of the local cluster, in its own fresh process."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from labkit.clusters.job import Job
from labkit.clusters.local.recording import MAX_EVENTS, Recorder, RecordingProcessGroup
from labkit.clusters.program import execute
from labkit.clusters.torch_versions import rendezvous_with, replace_groups_with
from labkit.clusters.warm import Reporter, seconds, shared_file


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run `job` as rank `index` and report how it ended.

    options: `world_size`; `gpus` of this machine; `backend`, used where the program names none (torch's own choice when
    empty).
    """
    world_size: int = options["world_size"]
    gpus: int = options["gpus"]
    attempts = itertools.count()

    def store(_: int) -> Store:
        # a program may destroy its group and make another: it must not read what the first one left
        return PrefixStore(f"{next(attempts)}", FileStore(shared_file(), world_size))

    def backend(asked: str) -> str:
        chosen = asked or options["backend"]
        if "nccl" in chosen and gpus < world_size:
            reporter.note(f"{world_size} ranks, {gpus} GPUs: gloo is used, not nccl")
            return "gloo"
        return chosen

    recorder = Recorder(index, world_size, seconds)

    def recorded(group: dist.ProcessGroup, backend: str, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        if backend == "gloo":
            # a rank whose program ends here must not break the connections that others are still making
            group.barrier().wait()
        if not job.trace:
            return group
        if backend != "gloo":
            reporter.note(f"what is sent over {backend} is not in the trace, only what gloo sends")
            return group
        return RecordingProcessGroup(group, ranks, recorder)

    rendezvous_with(store, lambda: index, world_size)
    replace_groups_with(backend, recorded)
    # what a cell defines can be pickled: object collectives and torch.save look it up in this module
    main = sys.modules["__main__"] = ModuleType("__main__")
    result = execute(job, index, seconds, main)
    if job.trace:
        if recorder.left_out:
            reporter.note(f"the trace has the first {MAX_EVENTS:,} operations of each rank")
        reporter.trace(recorder.trace())
    reporter.result(result)
