"""A verdict as outputs of a graded cell: a readable report, data for the feedback page, and nbgrader's score."""

from __future__ import annotations

from dataclasses import asdict, replace
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.verdict import Verdict
from labkit.checks import Report

FEEDBACK = "application/vnd.labkit.feedback+json"
"""MIME type of the data for page.py: the report, the notes and the pictures, as plain data."""


def for_learner(report: Report) -> Report:
    """Return a report as feedback: what each check expected and saw, in the judge's words.

    Removes everything that a submission's code could write: output, exception texts, reprs; also the seed, and the
    duration of checks, which a submission could prolong.
    """
    results = [
        replace(
            result,
            seen=result.told or result.stopped or result.seen,
            told="",
            parts="",
            seconds=0.0,
            run=None,
            picture=None,
            fault="",
        )
        for result in report.results
    ]
    return replace(report, seed=0, results=results)


def outputs(verdict: Verdict, cell: str) -> list[NotebookNode]:
    """Return the outputs of the graded cell with that id: the report, then the score that nbgrader reads."""
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
