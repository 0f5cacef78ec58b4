"""Progress as a table: `labkit progress` in a terminal, `%progress` in a notebook."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.progress.course import CourseProgress, course_progress

_STYLES = {"complete": "green", "begun": "yellow", "not begun": "dim"}


def show(console: Console | None = None) -> None:
    """Print all exercises with minutes, points and state, and where to continue. Default: standard output."""
    console = console or Console(highlight=False, force_jupyter=False)
    course = course_progress()
    console.print(_table(course))
    console.print(course.summary)
    if course.next is not None:
        console.print(f"continue here: {course.next.label}, {course.next.exercise.notebook_name}", soft_wrap=True)


def _table(course: CourseProgress) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for name in ("exercise", "builds\non", "minutes", "points", ""):
        # a long list goes on in the next lines: titles must not
        width = 10 if name.startswith("builds") else None
        table.add_column(name, justify="right" if name in ("minutes", "points") else "left", max_width=width)
    for title, exercises in course.phases.items():
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for one in exercises:
            builds_on = ", ".join(f"{earlier.entry.number:02}" for earlier in one.builds_on)
            minutes, points = str(one.exercise.entry.minutes), f"{one.earned:g} of {one.points:g}"
            style = _STYLES[one.state]
            table.add_row(one.label, builds_on, minutes, points, f"[{style}]{one.state}[/{style}]")
    return table
