"""A verdict as the outputs of a graded cell: a page for the learner, a number for nbgrader."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.verdict import Verdict
from labkit.checks import Report


def for_learner(report: Report) -> Report:
    """A report as feedback: what each check expected and saw, in the judge's words.

    Nothing that could carry hidden inputs out at length: no output, no text of exceptions, no seed.
    """
    results = [
        replace(result, seen=result.stopped or result.seen, run=None, picture=None, fault="")
        for result in report.results
    ]
    return replace(report, seed=0, results=results)


def outputs(verdict: Verdict, cell: str) -> list[NotebookNode]:
    """Outputs of the graded cell with that id: what a person reads, then the number that nbgrader reads."""
    report = for_learner(verdict.reports[cell])
    text = "\n".join([*verdict.notes, *(result.text() for result in report.results), report.summary])
    remarks = "".join(f"<p>{escape(note)}</p>" for note in verdict.notes)
    html = f'<div class="labkit-feedback">{remarks}{report._repr_html_()}</div>'
    return [
        new_output("display_data", {"text/html": html, "text/plain": text}),
        new_output("execute_result", {"text/plain": repr(float(report.earned))}, execution_count=1),
    ]
