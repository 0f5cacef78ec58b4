"""`labkit integrity PHASE`: the report as a table, a page and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autograder.integrity.page import page
from autograder.integrity.report import NothingToCompare, Report, make_report, printable
from labkit import catalogue

_ROWS = 20
_NAMES = 8


def main(phase: str, course: Path | None, also: Sequence[Path], anonymous: bool) -> int:
    """Make the report on `phase`; print what to review and where the page is. Returns an exit code."""
    course = course or Path(os.environ.get("LABKIT_COURSE") or catalogue.root() / "course")
    console = Console(highlight=False)
    try:
        report = make_report(course, phase, also, anonymous=anonymous)
    except (NothingToCompare, OSError) as problem:
        print(f"labkit: {printable(str(problem))}", file=sys.stderr)
        return 2
    folder = course / "integrity"
    folder.mkdir(exist_ok=True)
    html, data = folder / f"{phase}.html", folder / f"{phase}.json"
    html.write_text(page(report), encoding="utf-8", errors="replace")
    data.write_text(json.dumps(report.to_json(), indent=1))
    show(report, console)
    console.print(Text(f"page: {html}\ndata: {data}"), soft_wrap=True)
    return 0


def show(report: Report, console: Console) -> None:
    """Print tables for a terminal, the most similar first."""
    console.print(f"{report.submissions} submissions. What to look at, for you to judge; nothing here changes a mark.")
    for reason, names in report.left_out.items():
        named = ", ".join(printable(name) for name in names[:_NAMES])
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        console.print(Text(f"  not compared, {reason}: {named}{more}"), soft_wrap=True)
    for folder in report.without:
        console.print(Text(f"  0 submissions for {report.phase} in {printable(folder)}"), soft_wrap=True)
    if report.pairs:
        table = Table(title="Rare passages in common", title_justify="left")
        for name in ("exercise", "submission", "submission"):
            table.add_column(name)
        for name in ("in common", "passages", "comments"):
            table.add_column(name, justify="right")
        for pair in report.pairs[:_ROWS]:
            sides = [f"{s.student} ({s.course})" if s.course else s.student for s in (pair.left, pair.right)]
            words = [
                pair.exercise.split("/")[-1],
                *sides,
                f"{pair.share:.0%}",
                str(len(pair.passages)),
                str(len(pair.comments)),
            ]
            table.add_row(*(Text(printable(word)) for word in words))
        console.print(table)
        _more(console, len(report.pairs) + report.more_pairs)
    if report.findings:
        table = Table(title="In single submissions", title_justify="left")
        for name in ("submission", "where", "what to look at", "seen"):
            table.add_column(name)
        for finding in report.findings[:_ROWS]:
            words = [finding.student, finding.place, finding.title, finding.what]
            table.add_row(*(Text(printable(word)) for word in words))
        console.print(table)
        _more(console, len(report.findings))
    if not report.pairs and not report.findings:
        console.print("Nothing out of the ordinary.")


def _more(console: Console, count: int) -> None:
    if count > _ROWS:
        console.print(f"  {count - _ROWS} more on the page")
