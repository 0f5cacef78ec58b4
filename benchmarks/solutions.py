"""The exercises' solutions beside the library: the same work, values equal or not, time side by side.

Each exercise has a part, `tests/course/PHASE/NAME/benchmark.py`, whose `measure(repetitions, quick)` returns a
`Beside` for each piece of work. Both do it alternately, on the same ranks; times are medians unless the part states
otherwise. If the algorithm is the same, a solution may take at most 1.1 times the library's time, ddp 1.05 times;
otherwise the ratio is only reported.

    python benchmarks/solutions.py [collectives ...] [--repetitions 20] [--quick]

Exit status 1: values differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from beside import Beside
from rich.console import Console
from rich.table import Table

from labkit.catalogue import Exercise, all_exercises, find
from labkit.clusters.forkserver.client import shared

PARTS = tuple(exercise.short_name for exercise in all_exercises())


def table(part: str, rows: Sequence[Beside]) -> Table:
    rendered = Table(title=f"{part}, {os.cpu_count()} cores", title_justify="left")
    for heading in ("work", "solution (ms)", "library (ms)", "ratio", "target", "values"):
        rendered.add_column(heading, justify="left" if heading == "work" else "right", no_wrap=True)
    for row in rows:
        target = f"{row.target}: {'yes' if row.ratio <= row.target else 'no'}" if row.same_algorithm else "-"
        times = (f"{seconds * 1e3:.3g}" for seconds in (row.solution, row.library))
        rendered.add_row(row.work, *times, f"{row.ratio:.2f}", target, "equal" if row.equal else "DIFFERENT")
    return rendered


def loaded(exercise: Exercise) -> ModuleType:
    """Return the module that measures the exercise."""
    spec = spec_from_file_location(f"benchmark of {exercise.name}", exercise.folder("tests") / "benchmark.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--repetitions", type=_positive, default=20, help="of each piece of work (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small work, few repetitions: does it work at all")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"{part!r} is none of the parts: {', '.join(PARTS)}")
    if options.quick:
        options.repetitions = 2
    equal = True
    for part in options.parts or PARTS:
        rows = loaded(find(part)).measure(options.repetitions, options.quick)
        Console(width=140).print(table(part, rows))
        equal = equal and all(row.equal for row in rows)
    shared().close()
    return 0 if equal else 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
