"""One notebook of one learner, from the submitted file to a verdict with its key. What workers do."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory

from autograder.desk.key import verdict_key
from autograder.desk.store import Kept, Verdicts, Work
from autograder.grading import builds_on, judge_notebook, modules_of
from autograder.intake import Intake, Limits, read_release, receive
from autograder.intake.collect import COLLECTED
from autograder.intake.stamps import current_record
from autograder.sandbox import Sandbox
from labkit.exercises import Exercise


@dataclass(frozen=True)
class Judged:
    """What became of a piece of work."""

    kept: Kept
    fresh: bool
    """Was it judged now? Else its verdict was there already."""


class Desk:
    """Judges notebooks of one course, one after the other. timeout: seconds for one call on ranks."""

    def __init__(
        self, coursedir: CourseDirectory, limits: Limits, sandbox: Sandbox, timeout: float, log: logging.Logger
    ) -> None:
        self._coursedir = coursedir
        self._limits = limits
        self._sandbox = sandbox
        self._timeout = timeout
        self._log = log
        self._verdicts = Verdicts(Path(coursedir.root))

    def receive(self, student: str, assignment: str) -> Intake:
        """What a learner handed in, as it is graded. Raises `IntakeFailed`."""
        course = self._coursedir
        release = read_release(Path(course.format_path(course.release_directory, ".", assignment)))
        record = current_record(Path(course.format_path(COLLECTED, student, assignment)))
        folder = Path(course.format_path(course.submitted_directory, student, assignment))
        return receive(folder, release, self._limits, record)

    def judge(self, work: Work, notebook: NotebookNode, again: bool = False) -> Judged:
        """The verdict on a notebook that intake has rebuilt, as it is kept or judged now; `again`: now in any case.

        It is not kept by this. Raises what is not the learner's fault.
        """
        earlier = self._earlier(work.student, notebook)
        key = verdict_key(notebook, earlier, self._sandbox, self._timeout)
        kept = None if again else self._verdicts.find(work, key)
        if kept is not None:
            return Judged(kept, fresh=False)
        began = time.perf_counter()
        verdict = judge_notebook(notebook, self._sandbox, self._timeout, self._log, earlier)
        return Judged(Kept(key, verdict, time.perf_counter() - began), fresh=True)

    def kept(self, work: Work, notebook: NotebookNode) -> Kept | None:
        """The verdict on a notebook that intake has rebuilt, if there is one that still counts. Judges nothing."""
        earlier = self._earlier(work.student, notebook)
        return self._verdicts.find(work, verdict_key(notebook, earlier, self._sandbox, self._timeout))

    def _earlier(self, student: str, notebook: NotebookNode) -> dict[str, str]:
        """The learner's modules of other notebooks, of this and earlier phases, on which this one builds."""
        needed = builds_on(notebook) - modules_of(notebook).keys()
        found: dict[str, str] = {}
        for assignment in sorted({Exercise(name).phase for name in needed}):
            released = Path(self._coursedir.format_path(self._coursedir.release_directory, ".", assignment))
            if released.is_dir():
                for other in self.receive(student, assignment).notebooks.values():
                    found |= {name: text for name, text in modules_of(other).items() if name in needed}
        return found
