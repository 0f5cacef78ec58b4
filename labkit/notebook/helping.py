"""`%check` and `%hint`: check an exercise, and get the next hint."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from labkit.catalogue import Exercise
from labkit.checks import Check, CheckResult, Report, check_exercise, visible_rubric
from labkit.checks.guidance import full_marks
from labkit.checks.provenance import in_words
from labkit.notebook.magics import Magic, exercise_names
from labkit.notebook.own_exercise import named_or_own
from labkit.notebook.screen import Watch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics() -> list[Magic]:
    """The two magics."""
    check = Magic(
        "check", _check, "Run the visible checks on your module of an exercise, on virtual ranks.", words=exercise_names
    )
    check.option(
        "name", nargs="?", metavar="EXERCISE", help="such as ring_allreduce (default: the exercise of this notebook)"
    )
    check.option("--cluster", choices=("virtual", "local"), default="virtual", help="where the ranks of the checks run")
    check.option("--seed", type=int, help="repeat the inputs of a report with this seed")
    hint = Magic(
        "hint",
        _hint,
        """Show the next hint for a TODO: the first that is not written, or whose check failed last.

        %hint            the next hint
        %hint 2          the next hint for TODO 2
        %hint --all      the hints that you have taken so far
        """,
        words=exercise_names,
    )
    hint.option(
        "wanted", nargs="*", metavar="EXERCISE or TODO", help="another exercise; the number of a TODO, such as 2"
    )
    hint.option("--all", action="store_true", help="show the hints that you have taken, and no new one")
    return [check, hint]


def _check(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = named_or_own(shell, options.name, "%check")
    total = len(visible_rubric(exercise).checks)
    titles: list[str] = []

    def progress(check: Check, result: CheckResult | None) -> None:
        if result is None:
            titles.append(check.title)

    def current(elapsed: float) -> str:
        return f"check {len(titles)} of {total}: {titles[-1]}" if titles else "first, the exercises that it builds on"

    try:
        with Watch(shell, current):
            report = check_exercise(exercise, cluster=options.cluster, seed=options.seed, progress=progress)
    except KeyboardInterrupt as interrupt:
        message = f"KeyboardInterrupt: stopped in check {len(titles)} of {total}"
        interrupt._render_traceback_ = lambda: [message]  # type: ignore[attr-defined]  # IPython looks there
        raise
    show(exercise, report)


def show(exercise: Exercise, report: Report) -> None:
    """Display a report, and a picture of the first result that is partly wrong: simple checks come first."""
    from labkit.plots import chunk_grid, part_grids

    banner = full_marks.banner(exercise) if report.passed else None
    text, html = report.text(), report._repr_html_()
    if banner is not None:
        text, html = f"{text}\n{banner.text}", html + banner.html
    display({"text/plain": text, "text/html": html}, raw=True)
    first = next((result for result in report.results if result.picture is not None), None)
    if first is None or first.picture is None:
        return
    if parts := first.picture.parts:
        display(part_grids(parts, in_words(parts), title=first.title))
    else:
        display(chunk_grid(first.picture.wrong, title=f"Wrong chunks · {first.title}"))


def _hint(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    from labkit.checks.guidance import hints

    numbers = [word for word in options.wanted if word.isdecimal()]
    names = [word for word in options.wanted if not word.isdecimal()]
    if len(numbers) > 1 or len(names) > 1:
        raise UsageError("%hint takes one TODO of one exercise: %hint 2, or %hint ring_allreduce 2")
    exercise = named_or_own(shell, names[0] if names else None, "%hint")
    todo = int(numbers[0]) if numbers else None
    try:
        shown = hints.earlier_hints(exercise, todo) if options.all else [hints.next_hint(exercise, todo)]
    except hints.NoHint as reason:
        raise UsageError(str(reason)) from None
    text = "\n\n".join(hint.text() for hint in shown)
    display({"text/plain": text, "text/markdown": "\n\n".join(hint.markdown() for hint in shown)}, raw=True)
