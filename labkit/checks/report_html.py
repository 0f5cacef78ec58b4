"""A report as HTML, for the notebook, the formgrader and the feedback page.

Styles are inline, since Jupyter's sanitizer removes style sheets. Text keeps the page's own colour, so that it works
on light and dark pages; only marks have colours of their own, near Okabe and Ito's blue and vermilion and legible on
both, with a word beside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from labkit.checks.check_result import CheckResult, details, number

MARKS = {
    "passed": ("✓", "#0b7cc1"),
    "failed": ("✗", "#d55e00"),
    "to do": ("○", "#777777"),
    "skipped": ("-", "#777777"),
    "lab error": ("!", "#777777"),
}


def report_html(exercise: str, summary: str, seed: int, results: Sequence[CheckResult]) -> str:
    """The sum, then every check. JupyterLab makes links of lines, with the exercise's module as their file.

    seed: repeats the same inputs; 0: not shown.
    """
    repeat = f"<br>to repeat with the same inputs: --seed {seed}" if seed else ""
    return (
        f'<div data-labkit-exercise="{escape(exercise)}" style="max-width:60em">'
        f'<p style="margin:0 0 .5em"><b>{escape(summary)}</b>{repeat}</p>{results_html(results)}</div>'
    )


def results_html(results: Sequence[CheckResult]) -> str:
    """A list of checks, each with its details."""
    return f'<div role="list">{"".join(map(_item, results))}</div>'


def state(result: CheckResult) -> str:
    """`passed`, `failed`, `skipped`, `lab error`, or `to do` if the code that it calls is not written yet."""
    if not result.counts:
        return "skipped" if result.skipped else "lab error"
    return "passed" if result.passed else "to do" if result.unwritten else "failed"


def _item(result: CheckResult) -> str:
    how = state(result)
    mark, colour = MARKS[how]
    points = "" if not result.counts else f"{number(result.earned)}/{number(result.points)}"
    # the title is beside the mark, or below it on a narrow screen
    return (
        '<div role="listitem" style="display:flex;flex-wrap:wrap;column-gap:.8em;padding:.35em 0;'
        'border-top:1px solid #8886;break-inside:avoid">'
        f'<div style="flex:0 0 5.6em;white-space:nowrap"><b style="color:{colour}" aria-hidden="true">{mark}</b> '
        f"<b>{how}</b></div>"
        f'<div style="flex:0 0 3.2em">{points}</div>'
        f'<div style="flex:1 1 20em;min-width:0">{escape(result.title)}{details_html(result)}</div></div>'
    )


def details_html(result: CheckResult) -> str:
    """Expected value, seen value, where to look: label and text side by side."""
    if result.skipped:
        return f'<div style="opacity:.75">{escape(result.skipped)}</div>'
    lines = details(result)
    if result.retried:
        lines.append(("retried", result.retried))
    if not lines:
        return ""
    rows = "".join(
        f'<div style="opacity:.75">{escape(label)}</div>'
        f'<div style="white-space:pre-wrap;overflow-wrap:anywhere;min-width:0{_monospace(label)}">{escape(value)}</div>'
        for label, value in lines
    )
    return (
        '<div style="display:grid;grid-template-columns:max-content minmax(0,1fr);column-gap:1em;'
        f'margin:.15em 0 .3em">{rows}</div>'
    )


def _monospace(label: str) -> str:
    return ";font-family:monospace" if label in ("expected", "seen", "printed") else ""
