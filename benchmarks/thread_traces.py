"""Runs programs whose ranks start threads again and again, half of the time beside busy processes: equal bit for bit?

    python benchmarks/thread_traces.py [--runs 1000] [--busy 8] [--kinds threads processes judged]

Compares values, output, notes and every event and memory sample with those of the program's first run on ranks of the
same kind. Exit status 1: some run differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import cycle, islice, product
from pathlib import Path

from busy_machine import busy
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "clusters" / "virtual"))
from thread_programs import KINDS, PROGRAMS, ran, seen


def main() -> None:
    """Run all of them, and print how many runs differ."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--busy", type=int, default=8)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    chosen = options.parse_args()
    cases = [*product(PROGRAMS, chosen.kinds)]
    expected: dict[tuple[str, str], str] = {}
    runs, different = Counter[str](), Counter[str]()
    console = Console()
    for load, number in ((0, chosen.runs - chosen.runs // 2), (chosen.busy, chosen.runs // 2)):
        began = time.monotonic()
        with busy(load):
            for name, kind in islice(cycle(cases), number):
                outcome = seen(ran(kind, *PROGRAMS[name]))
                runs[name] += 1
                if outcome != expected.setdefault((name, kind), outcome):
                    different[name] += 1
                    console.print(f"{name}, {kind}:\n  {outcome}\ndiffers from\n  {expected[name, kind]}", markup=False)
        took = time.monotonic() - began
        console.print(f"{number} runs beside {load} busy processes: {took:.0f} s, {different.total()} so far differ")
    for name, count in runs.items():
        console.print(f"{name}: {count} runs, {different[name]} differ")
    sys.exit(different.total() > 0)


if __name__ == "__main__":
    main()
