"""Judges right solutions while other processes are busy, and reports whether each gets full marks.

    python benchmarks/under_load.py [EXERCISE ...] [--repetitions 10] [--busy 8] [--judges 1] [--solutions-only]
                                    [--checks N]

Judges the solution and the variants of each exercise; when interrupted, reports what it has. Exit status 1: marks were
lost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from busy_machine import busy
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from autograder.judge import Judge, hidden_rubric
from autograder.mutants import Variants
from autograder.mutants.judging import rubrics
from autograder.sandbox import Sandbox
from labkit.catalogue import find
from labkit.checks import CannotJudge, Report, Rubric


@dataclass
class Row:
    """One right module, judged several times."""

    exercise: str
    module: str
    seconds: list[float] = field(default_factory=list)
    full: int = 0
    retried: int = 0
    """Number of runs in which a check had to be run again."""
    lost: list[str] = field(default_factory=list)
    """Checks that were lost, or reasons why there was no mark."""

    def note(self, came: Report | CannotJudge, seconds: float) -> None:
        self.seconds.append(seconds)
        if isinstance(came, CannotJudge):
            self.lost.append(f"no mark: {came}")
            return
        self.full += came.earned == came.points
        self.retried += any(result.retried for result in came.results)
        self.lost += [result.text() for result in came.results if not (result.passed or result.skipped)]


def modules(rubric: Rubric, solutions_only: bool) -> dict[str, str]:
    """Return the texts of right modules, by name."""
    texts = {"solution": rubric.exercise.source("solution")[0]}
    if not solutions_only:
        variants = Variants(rubric.exercise)
        texts |= {name: variants.text(name) for name in variants}
    return texts


def judge(exercise: str, text: str, checks: int | None) -> tuple[Report | CannotJudge, float]:
    """Judge a module by `checks` randomly chosen checks (None: all); return the outcome and the seconds.

    Runs in a separate process: a rubric computes expected values with torch's global random generator.
    """
    rubric = hidden_rubric(find(exercise))
    names = [check.name for check in rubric.checks]
    drawn = names if checks is None else random.sample(names, min(checks, len(names)))
    began = time.monotonic()
    others = {earlier.name: earlier.source("solution")[0] for earlier in rubric.exercise.builds_on}
    outcome: Report | CannotJudge
    try:
        with Judge(Sandbox()) as judging:
            outcome = judging.judge(rubric.exercise, text, others, drawn)
    except CannotJudge as error:
        outcome = error
    return outcome, time.monotonic() - began


def table(rows: list[Row], processes: int, judges: int) -> Table:
    cores = len(os.sched_getaffinity(0))
    title = f"right modules beside {processes} busy processes, {judges} judged at a time, {cores} cores"
    rendered = Table(title=title, title_justify="left")
    for heading in ("exercise", "module", "full marks", "run again in", "median (s)", "longest (s)"):
        rendered.add_column(heading, justify="left" if heading in ("exercise", "module") else "right", no_wrap=True)
    for row in rows:
        times = f"{statistics.median(row.seconds):.1f}", f"{max(row.seconds):.1f}"
        rendered.add_row(row.exercise, row.module, f"{row.full} of {len(row.seconds)}", str(row.retried), *times)
    return rendered


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("exercises", nargs="*", metavar="EXERCISE", help="short names (default: all)")
    parser.add_argument("--repetitions", type=int, default=10, help="of each module (default %(default)s)")
    parser.add_argument("--busy", type=int, default=8, help="processes that compute meanwhile (default %(default)s)")
    parser.add_argument("--judges", type=int, default=1, help="that judge side by side (default %(default)s)")
    parser.add_argument("--solutions-only", action="store_true", help="leave out the variants")
    parser.add_argument("--checks", type=int, help="so many of each rubric, drawn anew each time (default: all)")
    options = parser.parse_args()
    # a shell that starts this in the background makes it ignore Ctrl-C, which requests the results so far
    signal.signal(signal.SIGINT, signal.default_int_handler)
    known = {rubric.exercise.short_name: rubric for rubric in rubrics()}
    for name in options.exercises:
        if name not in known:
            parser.error(f"no exercise is called {name!r}; there are: {', '.join(known)}")
    rows: list[Row] = []
    work = []
    for name in options.exercises or known:
        for module, text in modules(known[name], options.solutions_only).items():
            rows.append(Row(name, module))
            work.append((text, rows[-1]))
    apart = multiprocessing.get_context("spawn")
    with (
        busy(options.busy),
        ProcessPoolExecutor(options.judges, apart, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        judged = {
            pool.submit(judge, row.exercise, text, options.checks): row
            for _ in range(options.repetitions)
            for text, row in work
        }
        try:
            for done in progress.track(as_completed(judged), total=len(judged), description="judging"):
                judged[done].note(*done.result())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for judging in multiprocessing.active_children():
                judging.terminate()
    console = Console(width=None if sys.stdout.isatty() else 120)
    rows = [row for row in rows if row.seconds]
    console.print(table(rows, options.busy, options.judges))
    lost = [(row, text) for row in rows for text in row.lost]
    for row, text in lost:
        console.print(f"{row.exercise}, {row.module}:\n{text}", markup=False)
    runs = sum(len(row.seconds) for row in rows)
    console.print(f"full marks in {sum(row.full for row in rows)} of {runs} runs")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
