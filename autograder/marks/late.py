"""Late penalties and extensions.

    c.LateRule.percent_per_day = 10      # in course/nbgrader_config.py

An extension is a line of `course/extensions.csv`: learner, assignment, new due date. nbgrader knows the due date
(`nbgrader db assignment add ASSIGNMENT --duedate ...`, or the formgrader).
"""

from __future__ import annotations

import csv
import io
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import Float

from autograder.times import InvalidTime, utc_time
from labkit.text_files import UnreadableText, read_text

DAY = 24 * 3600
EXTENSIONS = "extensions.csv"
COLUMNS = ("student", "assignment", "until")


class BrokenExtensions(ValueError):
    """`extensions.csv` cannot be read; the message names the line and the error."""


class LateRule(LateSubmissionPlugin):  # type: ignore[misc]  # nbgrader has no types
    """Each started day costs a percentage of the earned marks."""

    percent_per_day = Float(0.0, min=0.0, max=100.0, help="Of the marks, what a day that has begun costs.").tag(
        config=True
    )
    most_percent = Float(100.0, min=0.0, max=100.0, help="Of the marks, what lateness costs at most.").tag(config=True)
    free_minutes = Float(0.0, min=0.0, help="So late costs nothing; beyond, all of it counts.").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """Return the marks to subtract, or None."""
        if total_seconds_late <= 60 * self.free_minutes:
            return None
        days = math.ceil(total_seconds_late / DAY)
        return score * min(self.most_percent, self.percent_per_day * days) / 100 or None


class LatePenalties(AssignLatePenalties):  # type: ignore[misc]  # nbgrader has no types
    """nbgrader's preprocessor, after copying the extensions to the gradebook."""

    def preprocess(self, notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Set extension and penalty of one notebook of one learner. Raises `BrokenExtensions`."""
        ids = resources["nbgrader"]
        course = CourseDirectory(config=self.config, log=self.log)
        until = read_extensions(Path(course.root, EXTENSIONS)).get((ids["student"], ids["assignment"]))
        if until is not None:
            with Gradebook(ids["db_url"]) as gradebook:
                submission = gradebook.find_submission(ids["assignment"], ids["student"])
                due = submission.assignment.duedate
                if due is not None:
                    submission.extension = max(until - due, due - due)
                    gradebook.db.commit()
        done: tuple[NotebookNode, Any] = super().preprocess(notebook, resources)
        return done


def read_extensions(path: Path) -> dict[tuple[str, str], datetime]:
    """Return the due dates in UTC by learner and assignment; empty without a file. Raises `BrokenExtensions`."""
    try:
        text = read_text(path)
        # Excel separates by semicolons where a comma is the decimal sign
        separator = ";" if ";" in text.partition("\n")[0] else ","
        rows = list(csv.DictReader(io.StringIO(text), strict=True, delimiter=separator))
    except FileNotFoundError:
        return {}
    except (OSError, UnreadableText, csv.Error) as error:
        raise BrokenExtensions(f"{path} cannot be read: {error}") from None
    extensions = {}
    for number, row in enumerate(rows, start=2):
        cells = [(row.get(column) or "").strip() for column in COLUMNS]
        if not all(cells):
            raise BrokenExtensions(f"{path}, line {number}: it needs {', '.join(COLUMNS)}; it has {row}")
        student, assignment, until = cells
        try:
            extensions[student, assignment] = utc_time(until)
        except InvalidTime as problem:
            raise BrokenExtensions(f"{path}, line {number}: {problem}") from None
    return extensions
