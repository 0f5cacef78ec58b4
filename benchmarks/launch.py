"""Start-up time and memory of ranks, compared with torchrun and ipyparallel.

- start: from running a cell to every rank's first line, and to the end of the job; a gloo program with one all-reduce,
  alternately on fresh ranks of `local` and under `torchrun --standalone`. `local` forks its ranks from a forkserver
  that has imported torch: it starts once per notebook, and its time is given separately. After a pause, as between
  two cells that a person runs, up to 8 ranks have been forked ahead.
- first: a new notebook, from `%load_ext labkit` to the end of its first `%%torchrun` cell, alternately with a torchrun
  of the same program.
- cell: one all-reduce on existing ranks, alternately with `%%ranks` and with ipyparallel's `%%px`.
- memory: of a rank after a step of DistributedDataParallel, and of the whole job per rank.
- tail: the slowest of many starts.

    python benchmarks/launch.py [start] [first] [cell] [memory] [tail] [--ranks 1,4,8,16] [--repetitions 5]
                                [--starts 200]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

from first_cell import seconds_to_first_output
from live_cells import cells
from rich.console import Console
from rich.progress import track
from rich.table import Table
from starts import (
    PROGRAM,
    TRAINING,
    Seconds,
    memory_locally,
    memory_with_torchrun,
    seconds_locally,
    seconds_with_torchrun,
)

from labkit.clusters.forkserver.client import ForkServer

PARTS = ("start", "first", "cell", "memory", "tail")
OURS_PER_TURN = 5
"""Starts of `local` per start of torchrun, which takes much longer."""
PAUSE_SECONDS = 5.0
CELLS_PER_TURN = 5
PROGRESS = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s [PART ...] [options]"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--ranks", type=_counts, default=[1, 4, 8, 16], help="numbers of ranks (default 1,4,8,16)")
    parser.add_argument("--repetitions", type=_positive, default=5, help="torchrun's starts (default %(default)s)")
    parser.add_argument("--starts", type=_positive, default=200, help="starts for the tail (default %(default)s)")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    console = Console()
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for part in options.parts or PARTS:
        table = {"start": starts, "first": first, "cell": live, "memory": memory, "tail": tail}[part](options)
        console.print(table)


def starts(options: argparse.Namespace) -> Table:
    """Compare starts of `local` and torchrun, for each number of ranks."""
    table = _table(
        f"Fresh ranks, milliseconds: median (99th percentile) of {OURS_PER_TURN * options.repetitions} starts, "
        f"{options.repetitions} of torchrun",
        ("ranks", "until", "local", "torchrun", "ratio"),
    )
    forkserver, warming = _forkserver()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        for ranks in options.ranks:
            ours: list[Seconds] = []
            rested: list[Seconds] = []
            theirs: list[Seconds] = []
            for _ in track(range(options.repetitions), f"{ranks} ranks", console=PROGRESS, transient=True):
                ours += [seconds_locally(forkserver, ranks) for _ in range(OURS_PER_TURN)]
                theirs.append(seconds_with_torchrun(program, ranks))
                time.sleep(PAUSE_SECONDS)
                rested.append(seconds_locally(forkserver, ranks))
            for index, label in enumerate(("every rank's first line", "the job has ended")):
                for starts, until in ((ours, label), (rested, "the same, after a pause")):
                    times = [pair[index] for pair in starts], [pair[index] for pair in theirs]
                    _compare(table, (str(ranks), until), *times)
    forkserver.close()
    table.caption = f"The first start of all, which imports torch, took {warming:.1f} s."
    return table


def first(options: argparse.Namespace) -> Table:
    """Time the first cell of a new notebook, for each number of ranks."""
    table = _table(
        f"First cell of a notebook, milliseconds: median (99th percentile) of {options.repetitions}",
        ("ranks", "%load_ext and %%torchrun", "torchrun", "ratio"),
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        for ranks in options.ranks:
            turns = track(range(options.repetitions), f"{ranks} ranks", console=PROGRESS, transient=True)
            times = [(seconds_to_first_output(ranks), seconds_with_torchrun(program, ranks)[1]) for _ in turns]
            _compare(table, (str(ranks),), [ours for ours, _ in times], [theirs for _, theirs in times])
    return table


def live(options: argparse.Namespace) -> Table:
    """Time a cell on live ranks."""
    count = CELLS_PER_TURN * options.repetitions
    table = _table(
        f"Live ranks, milliseconds for a cell: median (99th percentile) of {count}",
        ("ranks", "%%ranks", "%%px", "ratio"),
    )
    for ranks in options.ranks:
        with cells(ranks) as run:
            times: dict[str, list[float]] = {name: [] for name in run}
            for _ in track(range(count), f"{ranks} live ranks", console=PROGRESS, transient=True):
                for name, cell in run.items():
                    times[name].append(cell())
        _compare(table, (str(ranks),), times["%%ranks"], times["%%px"])
    return table


def memory(options: argparse.Namespace) -> Table:
    """Measure the memory of ranks that train."""
    table = _table(
        "Memory of a rank that trains, MB (proportional set size)", ("ranks", "counted", "local", "torchrun", "share")
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "training.py"
        program.write_text(TRAINING)
        for ranks in track(options.ranks, "memory", console=PROGRESS, transient=True):
            pairs = zip(memory_locally(ranks), memory_with_torchrun(program, ranks), strict=True)
            for label, (ours, theirs) in zip(("the ranks", "all processes / ranks"), pairs, strict=True):
                table.add_row(str(ranks), label, f"{ours:.0f}", f"{theirs:.0f}", f"1/{theirs / ours:.1f}")
    table.caption = "All processes: with the forkserver and the supervisor; with torchrun's agent."
    return table


def tail(options: argparse.Namespace) -> Table:
    """Time the slowest of many starts."""
    table = _table(
        f"{options.starts} starts, milliseconds to every rank's first line",
        ("ranks", "median", "99th percentile", "slowest", "over 1 s"),
    )
    forkserver, _ = _forkserver()
    for ranks in options.ranks:
        turns = track(range(options.starts), f"{ranks} ranks", console=PROGRESS, transient=True)
        times = [seconds_locally(forkserver, ranks)[0] for _ in turns]
        figures = (statistics.median(times), _percentile(times), max(times))
        table.add_row(str(ranks), *(f"{1e3 * t:.0f}" for t in figures), str(sum(t > 1 for t in times)))
    forkserver.close()
    return table


def _forkserver() -> tuple[ForkServer, float]:
    """Start a forkserver; return it and the seconds until its first rank has run."""
    forkserver = ForkServer()
    began = time.perf_counter()
    seconds_locally(forkserver, 1)
    return forkserver, time.perf_counter() - began


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("until", "counted") else "right")
    return table


def _compare(table: Table, first: tuple[str, ...], ours: list[float], theirs: list[float]) -> None:
    ratio = statistics.median(theirs) / statistics.median(ours)
    table.add_row(
        *first, _milliseconds(ours), _milliseconds(theirs), f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"
    )


def _milliseconds(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.0f} ({1e3 * _percentile(times):.0f})"


def _percentile(times: list[float]) -> float:
    """Return the 99th percentile: the smallest time that 99 % do not exceed."""
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def _counts(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


if __name__ == "__main__":
    main()
