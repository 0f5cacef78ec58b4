"""`%check` and `%hint`: check an exercise, and get the next hint."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from IPython.display import display

from labkit import catalogue
from labkit.checks import Check, CheckResult, Report, check_exercise, visible_rubric
from labkit.notebook.magics import Magic, exercise_names
from labkit.notebook.screen import Watch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics() -> list[Magic]:
    """The two magics."""
    check = Magic(
        "check", _check, "Run the visible checks on your module of an exercise, on virtual ranks.", words=exercise_names
    )
    check.option("--cluster", choices=("virtual", "local"), default="virtual", help="where the ranks of the checks run")
    check.option("--seed", type=int, help="repeat the inputs of a report with this seed")
    hint = Magic("hint", _hint, "Show the next hint for an exercise, one at a time.", words=exercise_names)
    for magic in (check, hint):
        magic.option("name", metavar="EXERCISE", help="ring_allreduce, or phase3_multi_node/ring_allreduce")
    return [check, hint]


def _check(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = catalogue.find(options.name)
    total = len(visible_rubric(exercise).checks)
    titles: list[str] = []

    def progress(check: Check, result: CheckResult | None) -> None:
        if result is None:
            titles.append(check.title)

    def current(elapsed: float) -> str:
        return f"check {len(titles)} of {total}: {titles[-1]}" if titles else ""

    try:
        with Watch(shell, current):
            report = check_exercise(exercise, cluster=options.cluster, seed=options.seed, progress=progress)
    except KeyboardInterrupt as interrupt:
        message = f"KeyboardInterrupt: stopped in check {len(titles)} of {total}"
        interrupt._render_traceback_ = lambda: [message]  # type: ignore[attr-defined]  # IPython looks there
        raise
    show(report)


def show(report: Report) -> None:
    """Display a report, and a picture of the first result that is partly wrong: simple checks come first."""
    from labkit.plots import chunk_grid

    display({"text/plain": report.text(), "text/html": report._repr_html_()}, raw=True)
    first = next((result for result in report.results if result.picture is not None), None)
    if first is not None and first.picture is not None:
        display(chunk_grid(first.picture.wrong, title=f"Wrong chunks · {first.title}"))


def _hint(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    from labkit.checks import hints

    print(hints.next_hint(catalogue.find(options.name)).text())
