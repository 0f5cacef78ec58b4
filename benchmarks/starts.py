"""Starting ranks, by `local` and by torchrun: how long it takes, and what memory they hold."""

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
from labkit.clusters.warm import WarmProcess
from labkit.clusters.warm.processes import descendants

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
"""To the last rank's first line, and to the end of the job."""


_READY = re.compile(r"ready (\d+)\n")


class _Measured(Exception):
    def __init__(self, sizes: tuple[float, float]) -> None:
        self.sizes = sizes


def seconds_locally(warm: WarmProcess, ranks: int) -> Seconds:
    """From the call of `run` until all is over. Raises `RankFailed`."""
    heard: set[int] = set()
    first_lines = 0.0
    began = time.perf_counter()

    def listen(rank: int, stream: str, text: str) -> None:
        nonlocal first_lines
        if "ready" in text:
            heard.add(rank)
        if len(heard) == ranks and not first_lines:
            first_lines = time.perf_counter() - began

    local(nproc_per_node=ranks, warm=warm).run(Job(source=PROGRAM), listen).raise_if_failed()
    return first_lines, time.perf_counter() - began


def seconds_with_torchrun(program: Path, ranks: int) -> Seconds:
    """From the start of the command until its end."""
    began = time.perf_counter()
    first_lines = 0.0
    with _torchrun(program, ranks) as process:
        heard = 0
        assert process.stdout is not None
        for line in process.stdout:
            # ranks share the pipe, so two may stand on one line
            heard += line.count("ready")
            if heard == ranks and not first_lines:
                first_lines = time.perf_counter() - began
        if process.wait() != 0 or heard != ranks:
            raise SystemExit(f"torchrun failed with exit code {process.returncode}, {heard} of {ranks} ranks printed")
    return first_lines, time.perf_counter() - began


def memory_locally(ranks: int) -> tuple[float, float]:
    """Proportional set size in MB after a step of training: mean of the ranks, and of all processes for each rank.

    All processes are the ranks, their supervisor and the warm process that they are forked from.
    """
    others = set(descendants(os.getpid()))
    text = ""

    def listen(rank: int, stream: str, part: str) -> None:
        nonlocal text
        text += part
        if len(pids := _READY.findall(text)) == ranks:
            raise _Measured(_sizes(pids, set(descendants(os.getpid())) - others))

    warm = WarmProcess()
    try:
        local(nproc_per_node=ranks, warm=warm).run(Job(source=TRAINING), listen).raise_if_failed()
    except _Measured as measured:
        return measured.sizes
    finally:
        warm.close()
    raise SystemExit("the ranks ended before they were measured")


def memory_with_torchrun(program: Path, ranks: int) -> tuple[float, float]:
    """The same of torchrun: its ranks, and with its agent."""
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
    """Proportional set size: what it holds alone, and its share of what it has in common with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    return 0.0
