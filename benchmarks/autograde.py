"""Speed and memory of grading submissions, compared with stock nbgrader.

- ring: the ring notebook with its full rubric, as submitted.
- bare: the same without the cells that grading does not need. Stock nbgrader runs all cells.
- import: a notebook whose exercise only imports torch.

`labkit autograde`, with its sandbox and the given number of workers, alternates with unmodified `nbgrader autograde`,
which has no workers: it starts a kernel for each notebook, which runs the learner's cells and then, as the graded cell,
the same rubric on the same kind of ranks, without a sandbox; for `import` a plain assertion, which costs nothing. Each
command is timed from start to end, on its own course in which every learner submits the solution. Stock nbgrader's time
limits are raised out of the way. Memory is the peak of all processes together (proportional set size). The last column
is the share of the time in which cells and checks ran: the rest is start-up, files and the gradebook.

    python benchmarks/autograde.py [ring] [bare] [import] [--submissions 30] [--workers 1,2] [--repetitions 1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import nbformat
from graded_courses import Assignment, imports_torch, our_course, ring, stock_course
from nbgrader.api import Gradebook
from rich.console import Console
from rich.progress import track
from rich.table import Table

from labkit.linux.processes import descendants

PARTS: dict[str, Callable[[Path], Assignment]] = {
    "ring": lambda folder: ring(folder, only_needed=False),
    "bare": lambda folder: ring(folder, only_needed=True),
    "import": imports_torch,
}
PROGRESS = Console(stderr=True)
LOOK_SECONDS = 1.0
"""Interval between memory samples. Each one walks all page tables: four per second took an eighth of a core."""


@dataclass(frozen=True)
class Measured:
    """One command that graded all submissions."""

    seconds: float
    megabytes: float
    in_code: float
    """Seconds in which cells or checks ran, summed over all workers."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s [PART ...] [options]"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--submissions", type=_positive, default=30, help="of each notebook (default %(default)s)")
    parser.add_argument("--workers", type=_counts, default=[1, 2], help="of labkit autograde (default 1,2)")
    parser.add_argument("--repetitions", type=_positive, default=1, help="of everything (default %(default)s)")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    console = Console()
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    table = Table(title=f"Grading {options.submissions} submissions: median of {options.repetitions}")
    for heading in ("notebook", "grader", "workers", "a minute", "ratio", "MB", "in cells and checks"):
        table.add_column(heading, justify="left" if heading in ("notebook", "grader") else "right")
    for part in options.parts or PARTS:
        _compare(table, part, options)
    console.print(table)


def _compare(table: Table, part: str, options: argparse.Namespace) -> None:
    theirs: list[Measured] = []
    ours: dict[int, list[Measured]] = {workers: [] for workers in options.workers}
    count = options.submissions
    for _ in track(range(options.repetitions), part, console=PROGRESS, transient=True):
        with tempfile.TemporaryDirectory(prefix="labkit-benchmark-") as temporary:
            folder = Path(temporary)
            assignment = PARTS[part](folder)
            theirs.append(_stock(assignment, folder / "stock", count))
            for workers in options.workers:
                course = our_course(assignment, folder / f"ours{workers}", count)
                ours[workers].append(_ours(assignment, course, count, workers))
    _row(table, (part, "nbgrader autograde"), 1, theirs, theirs, count)
    for workers in options.workers:
        _row(table, ("", "labkit autograde"), workers, ours[workers], theirs, count)


def _row(
    table: Table, first: tuple[str, str], workers: int, own: list[Measured], stock: list[Measured], count: int
) -> None:
    seconds = statistics.median(m.seconds for m in own)
    ratio = statistics.median(m.seconds for m in stock) / seconds
    table.add_row(
        *first,
        str(workers),
        f"{60 * count / seconds:.1f}",
        "" if own is stock else f"{ratio:.1f}x",
        f"{statistics.median(m.megabytes for m in own):.0f}",
        f"{statistics.median(m.in_code / (m.seconds * workers) for m in own):.0%}",
    )


def _stock(assignment: Assignment, folder: Path, count: int) -> Measured:
    stock_course(assignment, folder, count)
    environment = {**assignment.environment, "LABKIT_WORKSPACE": str(folder / "workspace")}
    command = [sys.executable, "-m", "nbgrader", "autograde", assignment.phase]
    seconds, megabytes = _timed(command, folder, environment)
    # checks that need the sandbox's figures cannot run in a kernel
    _check_marks(folder / "gradebook.db", assignment, count, share=0.9)
    in_code = 0.0
    for path in (folder / "autograded").glob("*/*/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            times = cell.metadata.get("execution", {})
            if "shell.execute_reply" in times:
                begin, end = (
                    datetime.fromisoformat(times[key]) for key in ("iopub.execute_input", "shell.execute_reply")
                )
                in_code += (end - begin).total_seconds()
    return Measured(seconds, megabytes, in_code)


def _ours(assignment: Assignment, folder: Path, count: int, workers: int) -> Measured:
    command = [sys.executable, "-m", "labkit", "autograde", assignment.phase, "--workers", str(workers)]
    environment = {**assignment.environment, "LABKIT_COURSE": str(folder)}
    seconds, megabytes = _timed(command, folder, environment)
    _check_marks(folder / "gradebook.db", assignment, count)
    in_code = 0.0
    for path in (folder / "verdicts").glob("*/*/*.json"):
        for report in json.loads(path.read_text())["verdict"]["reports"].values():
            in_code += sum(result["seconds"] for result in report["results"])
    return Measured(seconds, megabytes, in_code)


def _check_marks(gradebook: Path, assignment: Assignment, count: int, share: float = 1.0) -> None:
    """Raise RuntimeError unless every submission got that share of full marks: otherwise the timing is meaningless."""
    with Gradebook(f"sqlite:///{gradebook}") as book:
        marks = [(s.score, s.max_score) for s in book.assignment_submissions(assignment.phase)]
    if len(marks) != count or any(score < share * most for score, most in marks):
        raise RuntimeError(f"not everybody has got enough marks in {gradebook}: {marks}")


def _timed(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Return a command's seconds, and the peak megabytes of it and its descendants. Raises RuntimeError."""
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        over, most = threading.Event(), [0.0]

        def watch() -> None:
            while not over.wait(LOOK_SECONDS):
                most[0] = max(most[0], sum(map(_megabytes, [process.pid, *descendants(process.pid)])))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - began
        over.set()
        watcher.join()
        if code:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}\n{log.read().decode(errors='replace')}")
    return seconds, most[0]


def _megabytes(pid: int) -> float:
    """Return the proportional set size; 0 for a process that has ended or is not accessible."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _counts(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


if __name__ == "__main__":
    main()
