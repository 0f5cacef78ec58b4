"""Learners on a hub of this machine: time to a ready notebook and to a first line on ranks, and memory of each.

Starts a hub as `./lab hub` does, in a folder of its own. Each learner logs in, opens the notebook of an exercise, runs
its first cell, defines the solved module, checks it and runs a cell on four processes. A ready notebook is one whose
kernel is idle, measured from the page of the login. Memory is the proportional set size of all processes in the
learner's sandbox, once they are quiet: with an open notebook, after its first cell (`%load_ext labkit`), and after
cells on ranks. They are quiet before the cell on four processes, too, which then starts at the same time for all.

    python benchmarks/classroom.py [--learners 50] [--at-once 10]

Without `--learners`, as many as fit into 20 GiB, 50 at most, by the memory of the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil
from classroom_learner import CellFailed, Learner
from rich.console import Console
from rich.table import Table

from autograder.classroom.limits.sandboxes import running as running_servers
from labkit import catalogue
from labkit.clusters.forkserver import starting
from labkit.linux import proc
from labkit.linux.free_port import free_port
from labkit.zygote import kernel

EXERCISE = "process_group"
FIRST_CELL = "%load_ext labkit\n%cluster local --nproc-per-node 4"
ON_RANKS = """\
%%torchrun -n 4
import torch, torch.distributed as dist

dist.init_process_group()
number = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(number)
print("the sum is", number.item())
"""
BYTES = 20 << 30
MOST_LEARNERS = 50
QUIET_CORES, QUIET_SECONDS, LONGEST_SECONDS = 0.02, 4.0, 60.0
"""Sandboxes are quiet when they use less than this share of a core for so many seconds; last is the longest wait."""
PARTS = {"notebook server": "server", kernel.NAME: "kernel", starting.NAME: "ranks' forkserver", "": "other"}
"""Parts of a learner's memory, by the names of processes; the last one is for all other names."""
PROGRESS = Console(stderr=True)


@dataclass
class Measured:
    """Seconds of all learners, and megabytes by part of each learner."""

    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    first_lines: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Seconds of CPU time in the sandbox until the notebook was ready."""
    memory: dict[str, list[Counter[str]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Hub:
    """A running hub. process: `labkit hub`."""

    address: str
    homes: Path
    process: psutil.Process

    def sandbox(self, name: str) -> list[psutil.Process]:
        """Return the processes in a learner's sandbox."""
        hubs = [child.pid for child in self.process.children()]
        for server in (server for hub in hubs for server in running_servers(hub, self.homes)):
            if server.learner == name:
                return [psutil.Process(pid) for pid in server.pids() if psutil.pid_exists(pid)]
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=_positive, help="number of learners (default: as many as fit)")
    parser.add_argument("--at-once", type=_positive, default=10, help="learners who start together (default 10)")
    options = parser.parse_args()
    console = Console()
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with hub(options.learners or MOST_LEARNERS) as running:
        measured = asyncio.run(measure(running, options.learners, options.at_once))
    console.print(times(measured, options.at_once))
    console.print(memory(measured))
    count = len(measured.alone) + len(measured.together)
    chosen = "" if options.learners else f", as many as fit into {BYTES >> 30} GiB and at most {MOST_LEARNERS}"
    console.print(f"{count} learners{chosen}; cells that failed: {len(measured.failures)}")
    if measured.failures:
        raise SystemExit("\n".join(measured.failures))


@contextlib.contextmanager
def hub(learners: int) -> Iterator[Hub]:
    """Run a hub with `learner1`, `learner2`, ... in a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="labkit-classroom-") as folder:
        root, log = Path(folder), Path(folder) / "output"
        site, address = root / "site.toml", f"http://127.0.0.1:{free_port()}"
        site.write_text(f'[hub]\naddress = "{address}"\nfolder = "{root}/classroom"\n[servers]\nstart_seconds = 600\n')
        command = [sys.executable, "-m", "labkit", "hub", "--site", str(site), "--learners", str(learners)]
        environment = {**os.environ, "LABKIT_ROOT": str(catalogue.root().resolve())}
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            while "Ctrl-C stops the hub" not in log.read_text():
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            yield Hub(address, root / "classroom/homes", psutil.Process(process.pid))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


async def measure(running: Hub, learners: int | None, at_once: int) -> Measured:
    """Let the first learner work alone, to find out how many fit, and the others in groups of `at_once`."""
    measured = Measured()
    notebook = nbformat.read(catalogue.find(EXERCISE).notebook, as_version=4)
    exercise = next(cell.source for cell in notebook.cells if cell.source.startswith("%%exercise"))
    cells = (exercise, f"%check {EXERCISE}")
    await quiet(running.process.children(recursive=True))  # servers wait until its zygote has imported all
    async with contextlib.AsyncExitStack() as people:

        async def join(number: int) -> Learner:
            return await people.enter_async_context(Learner(running.address, f"learner{number}"))

        async def begin(group: Sequence[Learner], seconds: list[float]) -> None:
            seconds += await asyncio.gather(*(learner.ready_notebook(notebook) for learner in group))
            measured.cpu += [_cpu(running.sandbox(learner.name)) for learner in group]
            await remember("open notebook", group)
            await each(group, lambda learner: learner.run(FIRST_CELL))
            await remember("%load_ext labkit", group)

        async def work(group: Sequence[Learner]) -> None:
            for cell in cells:
                await each(group, lambda learner, cell=cell: learner.run(cell))
            await calm(group)  # as after a learner's pause to read, in which ranks are forked ahead
            await each(group, on_ranks)
            await remember("after cells on ranks", group)

        async def on_ranks(learner: Learner) -> None:
            output = await learner.run(ON_RANKS)
            if output.text != "[0-3] the sum is 10\n" or output.first_line_seconds is None:
                raise CellFailed(f"{learner.name}: the ranks printed {output.text!r}")
            if learner is not first:
                measured.first_lines.append(output.first_line_seconds)

        async def each(group: Iterable[Learner], act: Callable[[Learner], Awaitable[object]]) -> None:
            for outcome in await asyncio.gather(*map(act, group), return_exceptions=True):
                if isinstance(outcome, CellFailed):
                    measured.failures.append(str(outcome))
                elif isinstance(outcome, BaseException):
                    raise outcome

        async def calm(group: Sequence[Learner]) -> None:
            await quiet([process for learner in group for process in running.sandbox(learner.name)])

        async def remember(state: str, group: Sequence[Learner]) -> None:
            await calm(group)
            PROGRESS.print(f"{', '.join(learner.name for learner in group)}: {state}")
            measured.memory.setdefault(state, []).extend(megabytes(running.sandbox(learner.name)) for learner in group)

        first = await join(1)
        await begin([first], measured.alone)
        await work([first])
        most = fitting(measured.memory["after cells on ranks"][0].total()) if learners is None else learners
        for start in range(2, most + 1, at_once):
            group = [await join(number) for number in range(start, min(start + at_once, most + 1))]
            await begin(group, measured.together)
            await work(group)
    return measured


async def quiet(processes: Iterable[psutil.Process]) -> None:
    """Wait until these processes do almost nothing."""
    limit, before = time.monotonic() + LONGEST_SECONDS, _cpu(list(processes))
    while time.monotonic() < limit:
        await asyncio.sleep(QUIET_SECONDS)
        now = _cpu(list(processes))
        if now - before < QUIET_CORES * QUIET_SECONDS:
            return
        before = now


def megabytes(processes: Iterable[psutil.Process]) -> Counter[str]:
    """Return the proportional set size by part."""
    by_part: Counter[str] = Counter()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            by_part[_part(process)] += process.memory_full_info().pss / 1e6
    return by_part


def _part(process: psutil.Process) -> str:
    return PARTS.get(proc.read(f"{process.pid}/comm").decode().strip(), "other")


def _cpu(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def fitting(megabytes: float) -> int:
    """Return how many learners fit if each needs as much memory as the first, who shares with nobody."""
    free = min(BYTES, int(0.9 * psutil.virtual_memory().available))
    return max(1, min(MOST_LEARNERS, int(free / (megabytes * 1e6))))


def times(found: Measured, at_once: int) -> Table:
    """Return the table of seconds."""
    table = Table(title="Seconds")
    for heading in ("", "learners", "median", "longest"):
        table.add_column(heading, justify="right" if heading else "left")
    for label, seconds in (
        ("from login to a ready notebook, alone", found.alone),
        (f"the same, {at_once} at once", found.together),
        ("CPU time in the sandbox until then", found.cpu),
        (f"first line of %%torchrun -n 4, {at_once} at once", found.first_lines),
    ):
        if seconds:
            table.add_row(label, str(len(seconds)), f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}")
    return table


def memory(found: Measured) -> Table:
    """Return the table of megabytes."""
    table = Table(title="Memory of a learner, MB (proportional set size): median over all learners, and by part")
    for heading in ("", "learners", "all", "most", *PARTS.values()):
        table.add_column(heading, justify="right" if heading else "left")
    for state, sizes in found.memory.items():
        totals = [by_part.total() for by_part in sizes]
        parts = [statistics.median(by_part[part] for by_part in sizes) for part in PARTS.values()]
        table.add_row(state, str(len(sizes)), *(f"{n:.0f}" for n in (statistics.median(totals), max(totals), *parts)))
    return table


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


if __name__ == "__main__":
    main()
