"""GPUs and cores of this machine, and the number of ranks, threads and GPUs that follows from them.

This module never creates a CUDA context: torch counts GPUs by NVML where it can. Ranks are forked from another process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from labkit.clusters.job import GpusOrCores, InvalidJob

_CGROUPS = Path("/sys/fs/cgroup")


def count_gpus() -> int:
    """Number of GPUs visible to programs started now, with `CUDA_VISIBLE_DEVICES` considered."""
    return torch.cuda.device_count()


def gpus(environment: Mapping[str, str]) -> int:
    """Number of GPUs visible to ranks with these environment variables."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count_gpus()
    named = [name.strip() for name in visible.split(",")]
    # as in CUDA: entries after an invalid one do not count
    usable = named.index("-1") if "-1" in named else len(named)
    return min(count_gpus(), usable if visible.strip() else 0)


def cores() -> int:
    """Number of cores that this process may use, with its affinity and its control group's quota considered."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def ranks_per_node(asked: int | GpusOrCores, environment: Mapping[str, str]) -> int:
    """torchrun's words as a number. Raises `InvalidJob`."""
    if isinstance(asked, int):
        return asked
    count = 0 if asked == "cpu" else gpus(environment)
    if asked == "gpu" and not count:
        hidden = environment.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
        why = f"; CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
        raise InvalidJob(
            f"nproc_per_node=gpu: there is no GPU here that torch can use{why}. auto takes GPUs where there are any, "
            "else cores; a number takes as many processes"
        )
    return count or cores()


def threads_per_rank(ranks: int) -> int:
    """Value of `OMP_NUM_THREADS`: the cores divided by the ranks. torchrun would set 1 and warn."""
    return max(1, cores() // ranks)


def gpus_of_node(node: int, nproc_per_node: int, found: int) -> str:
    """`CUDA_VISIBLE_DEVICES` of a simulated node: each has its own GPUs, so that LOCAL_RANK is the index of one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(found)]
    return ",".join(names[node * nproc_per_node : (node + 1) * nproc_per_node])


def _quota() -> float | None:
    """CPU quota of the control group, in cores; None if there is no limit."""
    try:
        quota, period = (_CGROUPS / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((_CGROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
