"""nbgrader's exchange where each learner sees a part of it: `inbound/LEARNER` and `feedback/LEARNER` as their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nbgrader.exchange.default import ExchangeReleaseFeedback
from nbgrader.utils import notebook_hash

from autograder.intake.collect import is_student


class ReleaseFeedback(ExchangeReleaseFeedback):  # type: ignore[misc]  # nbgrader has no types
    """Puts feedback into the folder of its learner, where nbgrader's own `fetch_feedback` finds it."""

    def copy_files(self) -> None:
        """Copy the pages of one assignment; a page that is read meanwhile is either the old or the new one."""
        course = self.coursedir
        excluded = set(filter(None, course.student_id_exclude.split(",")))
        pages = Path(course.format_path(course.feedback_directory, ".", ".")).resolve()
        for folder in sorted(pages.glob(f"*/{course.assignment_id}")):
            student = folder.parent.name
            if student in excluded or course.student_id not in ("*", student) or not is_student(student):
                continue
            self._release(student, folder)

    def _release(self, student: str, folder: Path) -> None:
        """Release the pages of one submission."""
        try:
            secret = (folder / "submission_secret.txt").read_text()
        except OSError:
            self.log.warning("No feedback for %s: the submission did not come through the exchange", student)
            return
        own = Path(self.dest_path) / student
        own.mkdir(exist_ok=True)
        for page in sorted(folder.glob("*.html")):
            released = own / f"{notebook_hash(secret=secret, notebook_id=page.stem)}.html"
            making = own / f".{released.name}"
            shutil.copyfile(page, making)
            making.chmod(0o644)
            os.replace(making, released)
            self.log.info("Feedback released to %s: %s", student, page.stem)
