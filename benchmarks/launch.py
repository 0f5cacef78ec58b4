"""How long a learner waits: from running a cell to the first line of every rank, beside torchrun.

The same program, gloo and one all-reduce, is started by `local` and by `torchrun --standalone`, in turns. `local` forks
its ranks from a process that has torch imported; that one is started once for each notebook, and is measured apart.

    python benchmarks/launch.py [--ranks 4] [--repetitions 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from labkit import Job, local
from labkit.clusters.warm import WarmProcess

PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(f"ready: rank {dist.get_rank()} of {x.item():.0f}", flush=True)
dist.destroy_process_group()
"""


def seconds_locally(warm: WarmProcess, ranks: int) -> tuple[float, float]:
    """To the last rank's first line, and to the end of the job."""
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


def seconds_with_torchrun(program: Path, ranks: int) -> tuple[float, float]:
    """The same two times."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(program)]
    heard = 0
    first_lines = 0.0
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # ranks share the pipe, so two may stand on one line
            heard += line.count("ready")
            if heard == ranks and not first_lines:
                first_lines = time.perf_counter() - began
    if process.returncode != 0 or heard != ranks:
        raise SystemExit(f"torchrun failed with exit code {process.returncode}, {heard} of {ranks} ranks printed")
    return first_lines, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=_positive, default=4, help="ranks of each start (default %(default)s)")
    parser.add_argument("--repetitions", type=_positive, default=5, help="starts of each kind (default %(default)s)")
    options = parser.parse_args()

    warm = WarmProcess()
    began = time.perf_counter()
    seconds_locally(warm, 1)
    warming = time.perf_counter() - began
    times: dict[str, list[tuple[float, float]]] = {"local": [], "torchrun": []}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        kinds: dict[str, Callable[[], tuple[float, float]]] = {
            "local": lambda: seconds_locally(warm, options.ranks),
            "torchrun": lambda: seconds_with_torchrun(program, options.ranks),
        }
        for turn in track(range(2 * options.repetitions), "starting ranks", console=Console(stderr=True)):
            kind = ("local", "torchrun")[turn % 2]
            times[kind].append(kinds[kind]())
    warm.close()

    table = Table(title=f"{options.ranks} ranks, median of {options.repetitions} starts each, {os.cpu_count()} cores")
    for heading in ("seconds until", "local", "torchrun", "ratio"):
        table.add_column(heading, justify="left" if heading == "seconds until" else "right")
    for index, what in enumerate(("every rank's first line", "the job has ended")):
        ours, theirs = (statistics.median(pair[index] for pair in times[kind]) for kind in ("local", "torchrun"))
        table.add_row(what, f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.0f}x")
    Console().print(table)
    print(f"The first start of all, which imports torch, took {warming:.1f} s.")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    main()
