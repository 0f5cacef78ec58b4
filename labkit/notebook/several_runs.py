"""Several runs one after the other, for cells that take long: the cell shows which one is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from IPython.core.getipython import get_ipython

from labkit.notebook.output.progress import duration
from labkit.notebook.screen import Watch

Value = TypeVar("Value")
Result = TypeVar("Result")


def run_each(values: Iterable[Value], run: Callable[[Value], Result], name: str) -> dict[Value, Result]:
    """Call `run` with each of `values`, one after the other, and return the results by value.

    While it runs, the cell shows `ranks 64, 6 of 7, 5 s`, where `name` is "ranks"; the text vanishes at the end. An
    output that `run` prints would vanish with it: print afterwards.
    """
    results: dict[Value, Result] = {}
    values = list(values)

    def current(elapsed: float) -> str:
        number = min(len(results), len(values) - 1)
        return f"{name} {values[number]}, {number + 1} of {len(values)}, {duration(int(elapsed))}" if values else ""

    def run_all() -> None:
        for value in values:
            results[value] = run(value)

    shell = get_ipython()
    if shell is None:
        run_all()
    else:
        with Watch(shell, current):
            run_all()
    return results
