"""Start-up time and memory of ranks, with `local` and with torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit import Job, local
from labkit.clusters.forkserver.client import ForkServer
from labkit.linux.processes import descendants

PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(f"ready: rank {dist.get_rank()} of {x.item():.0f}", flush=True)
dist.destroy_process_group()
"""
TRAINING = """\
import os
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(10, 100)).sum().backward()
optimizer.step()
dist.barrier()
print(f"ready {os.getpid()}\\n", end="", flush=True)
time.sleep(600)
"""
Seconds = tuple[float, float]
"""Seconds to the last rank's first line, and to the end of the job."""


_READY = re.compile(r"ready (\d+)\n")


class _Measured(Exception):
    def __init__(self, sizes: tuple[float, float]) -> None:
        self.sizes = sizes


def seconds_locally(forkserver: ForkServer, ranks: int) -> Seconds:
    """Time from the call of `run` until the job has ended. Raises `RankFailed`."""
    heard: set[int] = set()
    first_lines = 0.0
    began = time.perf_counter()

    def listen(rank: int, stream: str, text: str) -> None:
        nonlocal first_lines
        if "ready" in text:
            heard.add(rank)
        if len(heard) == ranks and not first_lines:
            first_lines = time.perf_counter() - began

    local(nproc_per_node=ranks, forkserver=forkserver).run(Job(source=PROGRAM), listen).raise_if_failed()
    return first_lines, time.perf_counter() - began


def seconds_with_torchrun(program: Path, ranks: int) -> Seconds:
    """Time from the start of the command to its end."""
    began = time.perf_counter()
    first_lines = 0.0
    with _torchrun(program, ranks) as process:
        heard = 0
        assert process.stdout is not None
        for line in process.stdout:
            # ranks share the pipe, so two may write to one line
            heard += line.count("ready")
            if heard == ranks and not first_lines:
                first_lines = time.perf_counter() - began
        if process.wait() != 0 or heard != ranks:
            raise SystemExit(f"torchrun failed with exit code {process.returncode}, {heard} of {ranks} ranks printed")
    return first_lines, time.perf_counter() - began


def memory_locally(ranks: int) -> tuple[float, float]:
    """Proportional set size in MB after a step of training: mean over the ranks, and all processes divided by ranks.

    All processes are the ranks, their supervisor and the forkserver.
    """
    others = set(descendants(os.getpid()))
    text = ""

    def listen(rank: int, stream: str, part: str) -> None:
        nonlocal text
        text += part
        if len(pids := _READY.findall(text)) == ranks:
            raise _Measured(_sizes(pids, set(descendants(os.getpid())) - others))

    forkserver = ForkServer()
    try:
        local(nproc_per_node=ranks, forkserver=forkserver).run(Job(source=TRAINING), listen).raise_if_failed()
    except _Measured as measured:
        return measured.sizes
    finally:
        forkserver.close()
    raise SystemExit("the ranks ended before they were measured")


def memory_with_torchrun(program: Path, ranks: int) -> tuple[float, float]:
    """The same for torchrun: its ranks, and including its agent."""
    text = ""
    with _torchrun(program, ranks) as process:
        assert process.stdout is not None
        for line in process.stdout:
            text += line
            if len(pids := _READY.findall(text)) == ranks:
                sizes = _sizes(pids, {process.pid, *descendants(process.pid)})
                process.terminate()
                return sizes
    raise SystemExit(f"torchrun failed with exit code {process.returncode}")


def _sizes(ranks: list[str], processes: set[int]) -> tuple[float, float]:
    return sum(_megabytes(int(pid)) for pid in ranks) / len(ranks), sum(map(_megabytes, processes)) / len(ranks)


@contextmanager
def _torchrun(program: Path, ranks: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        yield process


def _megabytes(pid: int) -> float:
    """Return the proportional set size: private memory plus the process's share of shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    return 0.0
