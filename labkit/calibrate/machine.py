"""The machine to measure: device, number of ranks, memory; and conditions that make measuring pointless."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.clusters import Job
from labkit.clusters.local import local as make
from labkit.clusters.local import machine as local
from labkit.hardware import GPUS
from labkit.linux import proc

LEAST_BYTES = 256e6
"""Free memory that each rank needs for its libraries and the smallest sizes."""


class UnsuitableMachine(ValueError):
    """The machine cannot be measured in its present state; the message says why and what to try."""


@dataclass(frozen=True)
class Machine:
    """The machine that the ranks run on."""

    device: str
    """`cpu` or `cuda`."""
    name: str
    """Name of the processor or GPU, as the system reports it."""
    ranks: int
    threads: int
    """CPU threads of each rank."""
    memory_bytes: float
    """Memory of one rank's device: the GPU's, or the rank's share of the machine's."""
    free_bytes: float
    """Free memory of one rank's share."""

    @property
    def backend(self) -> str:
        return "nccl" if self.device == "cuda" else "gloo"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the ranks: the same number of threads each, regardless of how many ranks run."""
        return {"OMP_NUM_THREADS": str(self.threads)} if self.device == "cpu" else {}

    @property
    def known(self) -> str | None:
        """The labkit.hardware GPU that matches this one by name and memory, if any."""
        if self.device != "cuda":
            return None
        words = set(re.split(r"[^a-z0-9]+", self.name.lower()))
        for name, gpu in GPUS.items():
            model = name.removeprefix("rtx-").split("-")[0]
            if model in words and abs(self.memory_bytes / 1e9 / gpu.memory_gb - 1) < 0.15:
                return name
        return None


def examine(device: str | None = None, ranks: int | None = None) -> Machine:
    """Describe this machine. Defaults of `device`: cuda if torch sees a GPU, else cpu; of `ranks`: one per GPU, or on
    the CPU one per core, from 2 to 8. Raises UnsuitableMachine."""
    gpus = local.count_gpus()
    chosen = device or ("cuda" if gpus else "cpu")
    if chosen == "cuda":
        return _gpus(gpus, ranks)
    cores = local.cores()
    used = ranks or min(8, max(2, cores))
    total, free = _host_bytes()
    if free / used < LEAST_BYTES:
        raise UnsuitableMachine(
            f"too little memory: {free / 1e6:,.0f} MB are free for {used} ranks, each needs {LEAST_BYTES / 1e6:,.0f}; "
            "close other programs, or take fewer with --ranks"
        )
    name = _processor()
    return Machine("cpu", name, used, local.threads_per_rank(used), total / used, free / used)


def warnings(machine: Machine) -> list[str]:
    """Warnings about conditions that will distort the figures."""
    messages = []
    cores = local.cores()
    load = os.getloadavg()[0]
    if machine.device == "cpu" and load > 0.5 * cores:
        messages.append(f"the machine is busy (load {load:.1f} on {cores} cores): times will be long and spread wide")
    if machine.device == "cpu" and machine.ranks > cores:
        messages.append(f"{machine.ranks} ranks share {cores} cores: each is measured while the others wait for theirs")
    return messages


def _gpus(count: int, ranks: int | None) -> Machine:
    if not count:
        raise UnsuitableMachine("torch sees no GPU here (labkit doctor says more); --device cpu measures the CPU")
    if ranks is not None and ranks > count:
        raise UnsuitableMachine(f"--ranks {ranks}, but there are {count} GPUs, and NCCL needs one for each rank")
    used = ranks or count
    # query CUDA in a process that ends: one that keeps a context keeps ranks out of a GPU in exclusive mode
    run = make(1).run(Job.calling(_seen, used, trace=False, timeout=120))
    if not run.ok:
        raise UnsuitableMachine(f"a GPU does not answer; is another program using it?\n{run.diagnosis()}")
    names, totals, free = zip(*run.values[0], strict=True)
    if len(set(names)) > 1:
        raise UnsuitableMachine(
            f"the GPUs are of different kinds ({', '.join(names)}); choose with CUDA_VISIBLE_DEVICES"
        )
    total = totals[0]
    taken = [index for index, free_bytes in enumerate(free) if free_bytes < 0.85 * total]
    if taken:
        raise UnsuitableMachine(
            f"GPU {', '.join(map(str, taken))} is in use: {min(free) / 1e9:.1f} of {total / 1e9:.1f} GB are free "
            "(nvidia-smi shows by whom); wait, or choose others with CUDA_VISIBLE_DEVICES"
        )
    return Machine("cuda", names[0], used, 1, float(total), float(min(free)))


def _seen(count: int) -> list[tuple[str, float, float]]:
    """Name, bytes and free bytes of each GPU."""
    seen = []
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        seen.append((str(torch.cuda.get_device_properties(index).name), float(total), float(free)))
    return seen


def _host_bytes() -> tuple[float, float]:
    """Total memory that this process may use, and how much of it is free."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        free = float(proc.table("meminfo")["MemAvailable"])
    except (OSError, KeyError):
        free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no control groups, or "max"
        return total, free
    return min(total, limit), min(free, limit - used)


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()
