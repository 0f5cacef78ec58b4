"""The feedback page, which replaces nbgrader's: marks, what to look at first, the run, the learner's code.

One file without scripts, fonts or external resources. Learners' input appears only as text: the template escapes
everything that this package has not marked as HTML, and the content security policy blocks scripts and loading.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mistune
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution, is_task
from traitlets import Enum

from autograder.cells import exercise_cell, exercise_of
from autograder.feedback.code import CodeLine, lines_of, visible
from autograder.feedback.outputs import FEEDBACK
from labkit.checks import CheckResult, Report
from labkit.checks.check_result import number
from labkit.checks.patience import NOT_RUN
from labkit.checks.report_html import details_html, results_html
from labkit.lab_failed import LAB_FAILED

_FOLDER = Path(__file__).parent
_STYLE = (_FOLDER / "page.css").read_text()
_POLICY = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; "
    f"style-src-elem 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "style-src-attr 'unsafe-inline'"
)
_markdown = mistune.create_markdown(escape=True)


class FeedbackExporter(Exporter):
    """Exports the page of a graded notebook; `c.GenerateFeedback.exporter_class`."""

    file_extension = ".html"
    output_mimetype = "text/html"
    reveal = Enum(
        ("details", "titles", "marks"),
        "details",
        help="What a page shows of hidden checks: what each expected and observed, with pictures and lines; titles and "
        "points; or only the marks of each exercise.",
    ).tag(config=True)

    def from_notebook_node(  # type: ignore[override]  # all exporters but the base return text
        self, nb: NotebookNode, resources: Any = None, **options: Any
    ) -> tuple[str, Any]:
        """Return the page of `nb`, after nbgrader has added scores and comments."""
        notebook, all_resources = super().from_notebook_node(nb, resources, **options)
        return page(notebook, all_resources.get("nbgrader", {}), self.reveal), all_resources


@dataclass(frozen=True)
class _JudgedCell:
    """One cell graded by the judge, with its exercise cell."""

    report: Report
    score: float
    """Score in the gradebook; differs from the report's if somebody changed it."""
    pictures: Sequence[Mapping[str, str]]
    code: Sequence[CodeLine]
    left_out: int
    """Number of lines of the cell that are not shown."""
    comment: Markup

    @property
    def name(self) -> str:
        return self.report.exercise.split("/")[-1]

    @property
    def failed(self) -> list[CheckResult]:
        return [result for result in self.report.results if not result.passed and result.counts]

    @property
    def passed(self) -> list[CheckResult]:
        return [result for result in self.report.results if result.passed]

    @property
    def not_judged(self) -> list[CheckResult]:
        """The checks that the grader could not judge, whose points are left out."""
        return [result for result in self.report.results if not (result.passed or result.counts)]

    @property
    def first(self) -> CheckResult | None:
        """The check to look at first: rubrics begin with what the others need. None when nothing was run."""
        return next((result for result in self.failed if result.seen), None)

    @property
    def alike(self) -> list[CheckResult]:
        """The other checks that failed for the same reason as the first."""
        first = self.first
        return (
            [r for r in self.failed if r is not first and r.stopped == first.stopped] if first and first.stopped else []
        )

    @property
    def needing(self) -> list[CheckResult]:
        """The checks that failed because they need what the first one checks."""
        first = self.first
        return [r for r in self.failed if first and r is not first and r.cause == first.title]

    @property
    def others(self) -> list[CheckResult]:
        """The checks that failed for other reasons."""
        mentioned = [self.first, *self.alike, *self.needing, *self.not_run]
        return [result for result in self.failed if not any(result is other for other in mentioned)]

    @property
    def not_run(self) -> list[CheckResult]:
        """The checks that were not run because too many calls before them had hung."""
        return [r for r in self.failed if r is not self.first and r.seen.startswith(NOT_RUN)]


@dataclass(frozen=True)
class _ManualCell:
    """A cell that is marked by a person or belongs to no exercise."""

    name: str
    text: str
    score: float | None
    points: float
    comment: Markup


def page(notebook: NotebookNode, about: Mapping[str, Any], reveal: str = "details") -> str:
    """Return the page; `about` is nbgrader's data on the submission: its names, score and late penalty.

    reveal: see `FeedbackExporter.reveal`.
    """
    notes = dict.fromkeys(note for cell in notebook.cells for note in _feedback(cell).get("notes", []))
    judged = [_judged(cell, notebook) for cell in notebook.cells if _feedback(cell)]
    answers = list(_written(notebook))
    return _template("page.html.j2").render(
        words=LAB_FAILED,
        judged_before=about.get("lab_failed", False),
        style=Markup(_STYLE),
        policy=_POLICY,
        about=about,
        reveal=reveal,
        notes=[visible(note) for note in notes],
        judged=judged,
        written=[answer for answer in answers if answer.score is not None or answer.comment],
        unmarked=[answer for answer in answers if answer.score is None and not answer.comment],
    )


def unjudged_page(notebook: str, student: str, assignment: str) -> str:
    """Return the page of a submitted notebook that the lab has failed to judge."""
    about = {"notebook": notebook, "student": student, "assignment": assignment}
    return _template("unjudged.html.j2").render(style=Markup(_STYLE), policy=_POLICY, about=about, words=LAB_FAILED)


def _feedback(cell: NotebookNode) -> dict[str, Any]:
    """Return the judge's data in a graded cell; empty for other cells, whatever they contain."""
    if cell.cell_type != "code" or not is_grade(cell) or is_solution(cell):
        return {}
    feedback = (output.get("data", {}).get(FEEDBACK) for output in cell.outputs)
    return next((data for data in feedback if data), {})


def _judged(cell: NotebookNode, notebook: NotebookNode) -> _JudgedCell:
    data = _feedback(cell)
    report = Report.from_json(data["report"])
    work = exercise_cell(notebook, report.exercise)
    remarks: dict[int, list[str]] = defaultdict(list)
    for result in report.results:
        if result.line:
            remarks[result.line].append(f"{result.stopped.split(' at ')[0]}, in the check “{result.title}”")
    code = lines_of(work.source, remarks) if work is not None else []
    score = cell.metadata.nbgrader.get("score", report.marks)
    left_out = work.source.count("\n") + 1 - len(code) if work is not None else 0
    return _JudgedCell(report, score, data.get("pictures", []), code, left_out, _comment(work))


def _written(notebook: NotebookNode) -> Iterator[_ManualCell]:
    """Yield answers without a rubric, and graded cells without a verdict."""
    reported = {_feedback(cell)["report"]["exercise"] for cell in notebook.cells if _feedback(cell)}
    for cell in notebook.cells:
        theirs = is_solution(cell) or is_task(cell)
        if _feedback(cell) or (theirs and exercise_of(cell.source) in reported) or not (theirs or is_grade(cell)):
            continue
        about = cell.metadata.nbgrader
        marked = is_grade(cell) or is_task(cell)
        yield _ManualCell(
            about.grade_id,
            visible(cell.source),
            about.get("score") if marked else None,
            about.get("points", 0) if marked else 0,
            _comment(cell),
        )


_AUTOMATIC = "No response."
"""nbgrader's automatic comment on an answer that is unchanged since the release."""


def _comment(cell: NotebookNode | None) -> Markup:
    """Return a person's comment on the cell, rendered from Markdown; HTML in it is escaped."""
    text = cell.metadata.nbgrader.get("comment") if cell is not None else None
    return Markup(_markdown(text)) if text and text != _AUTOMATIC else Markup()


def _template(name: str) -> Template:
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["number"] = lambda value: number(round(float(value), 2))
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    environment.globals["results_html"] = lambda results: Markup(results_html(results))
    environment.globals["details_html"] = lambda result: Markup(details_html(result))
    environment.globals["svg"] = Markup
    return environment.get_template(name)
