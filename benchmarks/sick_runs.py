"""Ten runs with something wrong, and the same runs cured: pictures and times for docs/performance.md, on virtual ranks.

python benchmarks/sick_runs.py               # write pictures, the site's recordings of them, and the table
python benchmarks/sick_runs.py --check       # compare recordings and table, and exit with 1 if one differs
"""

from __future__ import annotations

import base64
import functools
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import page_tables

from labkit import Job, Run, virtual
from labkit.clusters.virtual import link, slow
from labkit.plots import timelines
from labkit.plots.traces.timeline import describe
from labkit.site import live, recording

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "performance.md"
LIVE = DOCS / "live" / PAGE.stem

START = """
import time, torch, torch.distributed as dist

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
big = torch.empty(4096, 4096)

def compute(times=1):
    for _ in range(times):
        big @ big
"""
"""First lines of all programs; they run on fake tensors, which have shapes and modelled times, and no data."""


@dataclass(frozen=True)
class Case:
    """A run that is slow, and its cure: programs, clusters and faults."""

    name: str
    sick: str
    cured: str = ""
    """Program of the cured run; if empty, the same program, and the cluster or the faults differ."""
    cluster: tuple[int, int] = (1, 4)
    """Number of nodes, and of ranks on each."""
    options: tuple[tuple[str, Any], ...] = ()
    cured_options: tuple[tuple[str, Any], ...] | None = None

    def runs(self) -> tuple[Run, Run]:
        """Return the sick run and the cured one. Raises RankFailed."""
        options = self.options if self.cured_options is None else self.cured_options
        return self._run(self.sick, dict(self.options)), self._run(self.cured or self.sick, dict(options))

    def _run(self, program: str, options: dict[str, Any]) -> Run:
        nodes, ranks = self.cluster
        cluster = virtual("dgx-a100", nnodes=nodes, nproc_per_node=ranks, fake=True, **options)
        return cluster.run(Job(source=START + program)).raise_if_failed()


REDUCE = "for step in range(3):\n    compute(2)\n    dist.all_reduce(torch.empty(10_000_000))\n"
CASES: Sequence[Case] = (
    Case("one rank is slow", REDUCE, options=(("faults", [slow(2, 1.8)]),), cured_options=()),
    Case(
        "gradients wait for the whole backward pass",
        "for step in range(2):\n    compute(4)\n    for _ in range(4):\n"
        "        dist.all_reduce(torch.empty(25_000_000))\n",
        "for step in range(2):\n    works = []\n    for _ in range(4):\n        compute()\n"
        "        works.append(dist.all_reduce(torch.empty(25_000_000), async_op=True))\n"
        "    for work in works:\n        work.wait()\n",
        cluster=(4, 1),
    ),
    Case(
        "a message for each parameter",
        "compute()\nfor _ in range(60):\n    dist.all_reduce(torch.empty(10_000))\n",
        "compute()\ndist.all_reduce(torch.empty(600_000))\n",
        cluster=(4, 1),
    ),
    Case(
        "one network card is slow",
        REDUCE,
        cluster=(4, 1),
        options=(("faults", [link(node=1, factor=0.1)]),),
        cured_options=(),
    ),
    Case(
        "input is not ready",
        "for step in range(3):\n    time.sleep(0.008)\n    compute(2)\n    dist.all_reduce(torch.empty(10_000_000))\n",
        REDUCE,
    ),
    Case(
        "a pipeline of few microbatches",
        "for _ in range(2):\n    if rank:\n        dist.recv(torch.empty(1_000_000), rank - 1)\n    compute(6)\n"
        "    if rank < ranks - 1:\n        dist.send(torch.empty(1_000_000), rank + 1)\n",
        "for _ in range(12):\n    if rank:\n        dist.recv(torch.empty(166_667), rank - 1)\n    compute(1)\n"
        "    if rank < ranks - 1:\n        dist.send(torch.empty(166_667), rank + 1)\n",
    ),
    Case(
        "everything goes through rank 0",
        "compute()\nif rank:\n    dist.send(torch.empty(5_000_000), 0)\n    dist.recv(torch.empty(5_000_000), 0)\n"
        "else:\n    for other in range(1, ranks):\n        dist.recv(torch.empty(5_000_000), other)\n"
        "    for other in range(1, ranks):\n        dist.send(torch.empty(5_000_000), other)\n",
        "compute()\ndist.all_reduce(torch.empty(5_000_000))\n",
        cluster=(4, 1),
    ),
    Case(
        "tensor-parallel ranks on different nodes",
        "groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]\nfor layer in range(6):\n    compute()\n"
        "    dist.all_reduce(torch.empty(8_000_000), group=groups[rank % 2])\n",
        "groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]\nfor layer in range(6):\n    compute()\n"
        "    dist.all_reduce(torch.empty(8_000_000), group=groups[rank // 2])\n",
        cluster=(2, 2),
    ),
    Case(
        "rank 0 saves while the others wait",
        "for step in range(3):\n    compute(2)\n    dist.all_reduce(torch.empty(10_000_000))\n    if rank == 0:\n"
        "        time.sleep(0.006)\n    dist.barrier()\n",
        REDUCE,
    ),
    Case(
        "shares of different size",
        "for step in range(3):\n    compute(1 + rank)\n    dist.all_reduce(torch.empty(10_000_000))\n",
        "for step in range(3):\n    compute(2 + (rank + step) % 2)\n    dist.all_reduce(torch.empty(10_000_000))\n",
    ),
)


@functools.cache
def runs() -> tuple[tuple[Run, Run], ...]:
    """Return the sick run and the cured one of each case."""
    return tuple(case.runs() for case in CASES)


def write() -> None:
    """Write picture and recording of each run, `sick_N` and `cured_N`; both of a case have equal time axes."""
    for number, pair in enumerate(runs(), 1):
        pictures = timelines({title: run.trace for title, run in zip(_titles(number), pair, strict=True)})
        for kind, picture in zip(("sick", "cured"), pictures, strict=True):
            (DOCS / "images" / f"{kind}_{number}.png").write_bytes(picture.png())
    LIVE.mkdir(parents=True, exist_ok=True)
    for path, recorded in recordings():
        path.write_text(recording.text(recorded))


def recordings() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield file and content of each recording."""
    for number, pair in enumerate(runs(), 1):
        longest = max(run.trace.seconds for run in pair)
        for kind, title, run in zip(("sick", "cured"), _titles(number), pair, strict=True):
            yield LIVE / f"{kind}_{number}.json", recording.timeline(run.trace, title, describe(run.trace), longest)


def differing() -> list[Path]:
    """Return the files of recordings that differ from what `write` would write."""
    wanted = dict(recordings())
    on_disk = {path: live.recorded(f"{LIVE.name}/{path.stem}") for path in {*wanted, *LIVE.glob("*.json")}}
    return sorted(path for path, recorded in on_disk.items() if _unpacked(recorded) != _unpacked(wanted.get(path)))


def _titles(number: int) -> tuple[str, str]:
    return f"run {number}", f"run {number}, cured"


def _unpacked(recorded: dict[str, Any] | None) -> dict[str, Any] | None:
    """Decompress the columns: versions of zlib compress them differently."""
    return recorded and {**recorded, "data": zlib.decompress(base64.b64decode(recorded["data"]))}


def table() -> list[str]:
    """Return a row for each case: its fault, and both times."""
    lines = ["| run | what is wrong | ms | cured, ms |", "|--:|---|--:|--:|"]
    for number, (case, pair) in enumerate(zip(CASES, runs(), strict=True), 1):
        sick, cured = (run.trace.seconds * 1e3 for run in pair)
        lines.append(f"| {number} | {case.name} | {sick:.1f} | {cured:.1f} |")
    return lines


def filled(page: str) -> str:
    """Return the page with its table made anew."""
    return page_tables.filled(page, {"runs": table}, ["runs"])


if __name__ == "__main__":
    sys.exit(page_tables.main(__doc__ or "", PAGE, filled, also=write, differing=differing))
