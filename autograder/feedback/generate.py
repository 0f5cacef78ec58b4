"""nbgrader's GenerateFeedback, which also writes a page for a submission that the lab has failed to judge.

nbgrader makes pages from graded notebooks. Without a mark there is none, and its learner would find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbgrader.apps import api, generatefeedbackapp
from nbgrader.converters import GenerateFeedback

from autograder.course_paths import matching
from autograder.feedback.page import unjudged_page
from autograder.intake.autograde import write_stamps
from autograder.intake.collect import COLLECTED
from autograder.intake.folder import STAMPS
from autograder.intake.stamps import current_record
from autograder.verdicts.store import GradingTask, VerdictStore
from labkit.lab_failed import LAB_FAILED


class GenerateAllFeedback(GenerateFeedback):  # type: ignore[misc]  # nbgrader has no types
    """Replaces nbgrader's converter, through `install`. Configured as `c.GenerateFeedback`."""

    def init_notebooks(self) -> None:
        """Find graded notebooks, and those that could not be judged. Raises NbGraderException where there are none."""
        course = self.coursedir
        asked = course.student_id, course.assignment_id, course.notebook_id
        self._failed: Sequence[GradingTask] = VerdictStore(Path(course.root)).failures(*asked)
        if self._failed and not matching(self._format_source(course.assignment_id, course.student_id)):
            self.assignments: dict[str, list[str]] = {}
        else:
            super().init_notebooks()

    def init_single_notebook_resources(self, notebook_filename: str) -> dict[str, Any]:
        """Note whether the lab failed when it judged the notebook again; the page then says so."""
        resources: dict[str, Any] = super().init_single_notebook_resources(notebook_filename)
        about = resources["nbgrader"]
        about["lab_failed"] = GradingTask(about["student"], about["assignment"], about["notebook"]) in self._failed
        return resources

    def convert_notebooks(self) -> None:
        """Write all pages. Raises NbGraderException."""
        try:
            super().convert_notebooks()
        finally:
            for work in self._failed:
                self._write_unjudged(work)

    def _write_unjudged(self, work: GradingTask) -> None:
        again = f"`labkit autograde {work.assignment} --retry` judges it again"
        self.log.warning("%s of %s: %s; %s", work.notebook, work.student, LAB_FAILED, again)
        if Path(self._format_source(work.assignment, work.student), f"{work.notebook}.ipynb").exists():
            return  # an earlier verdict, whose page says so
        course = self.coursedir
        folder = Path(self._format_dest(work.assignment, work.student))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{work.notebook}.html").write_text(unjudged_page(work.notebook, work.student, work.assignment))
        record = current_record(Path(course.format_path(COLLECTED, work.student, work.assignment)))
        submitted = Path(course.format_path(course.submitted_directory, work.student, work.assignment))
        if not all((folder / name).exists() for name in STAMPS):
            write_stamps(record.handed_in if record else None, submitted, folder)
        self.set_permissions(work.assignment, work.student)


def install() -> None:
    """Make `nbgrader generate_feedback` and the formgrader write these pages; nbgrader has no setting for it."""
    generatefeedbackapp.GenerateFeedback = api.GenerateFeedback = GenerateAllFeedback
