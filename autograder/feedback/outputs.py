"""A verdict as the outputs of a graded cell: a report to read, data for the feedback page, nbgrader's number."""

from __future__ import annotations

from dataclasses import asdict, replace
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.verdict import Verdict
from labkit.checks import Report

FEEDBACK = "application/vnd.labkit.feedback+json"
"""Kind of the data that page.py reads: the report, the notes and the pictures, as plain data."""


def for_learner(report: Report) -> Report:
    """A report as feedback: what each check expected and saw, in the judge's words.

    Of what a submission's code said itself nothing is left: no output, no text of an exception, no repr; no seed; no
    time that a check took, which a submission could draw out.
    """
    results = [
        replace(
            result,
            seen=result.told or result.stopped or result.seen,
            told="",
            seconds=0.0,
            run=None,
            picture=None,
            fault="",
        )
        for result in report.results
    ]
    return replace(report, seed=0, results=results)


def outputs(verdict: Verdict, cell: str) -> list[NotebookNode]:
    """Outputs of the graded cell with that id: the report, then the number that nbgrader reads."""
    report = for_learner(verdict.reports[cell])
    pictures = [asdict(picture) for picture in verdict.pictures.get(cell, ())]
    text = "\n".join([*verdict.notes, *(result.text() for result in report.results), report.summary])
    remarks = "".join(f"<p>{escape(note)}</p>" for note in verdict.notes)
    drawn = "".join(f"<figure>{picture['svg']}</figure>" for picture in pictures)
    html = f'<div class="labkit-feedback">{remarks}{report._repr_html_()}{drawn}</div>'
    data = {"report": report.to_json(), "notes": list(verdict.notes), "pictures": pictures}
    return [
        new_output("display_data", {"text/html": html, "text/plain": text, FEEDBACK: data}),
        new_output("execute_result", {"text/plain": repr(float(report.marks))}, execution_count=1),
    ]
