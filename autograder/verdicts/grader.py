"""The workers' task: one notebook of one learner, from the submitted file to a verdict with its key."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory

from autograder.grading import builds_on, judge_notebook, modules_of
from autograder.intake import Intake, Limits, read_release, receive
from autograder.intake.collect import COLLECTED
from autograder.intake.stamps import current_record
from autograder.sandbox import Sandbox
from autograder.verdicts.key import verdict_key
from autograder.verdicts.store import GradingTask, StoredVerdict, VerdictStore
from labkit.catalogue import Exercise


@dataclass(frozen=True)
class JudgedNotebook:
    """Result of one piece of work."""

    stored: StoredVerdict
    fresh: bool
    """Whether it was judged now, rather than found in the store."""


class NotebookGrader:
    """Judges notebooks of one course, one after the other. timeout: seconds for one call on ranks."""

    def __init__(
        self, coursedir: CourseDirectory, limits: Limits, sandbox: Sandbox, timeout: float, log: logging.Logger
    ) -> None:
        self._coursedir = coursedir
        self._limits = limits
        self._sandbox = sandbox
        self._timeout = timeout
        self._log = log
        self._verdicts = VerdictStore(Path(coursedir.root))

    def receive(self, student: str, assignment: str) -> Intake:
        """Return a learner's submission in the form that is graded. Raises `IntakeFailed`."""
        course = self._coursedir
        release = read_release(Path(course.format_path(course.release_directory, ".", assignment)))
        record = current_record(Path(course.format_path(COLLECTED, student, assignment)))
        folder = Path(course.format_path(course.submitted_directory, student, assignment))
        return receive(folder, release, self._limits, record)

    def judge(self, work: GradingTask, notebook: NotebookNode, again: bool = False) -> JudgedNotebook:
        """Return the stored verdict on a notebook rebuilt by intake, or judge it now; `again`: judge in any case.

        The verdict is not stored. Raises errors that are not the learner's fault.
        """
        earlier = self._earlier(work.student, notebook)
        key = verdict_key(notebook, earlier, self._sandbox, self._timeout)
        stored = None if again else self._verdicts.find(work, key)
        if stored is not None:
            return JudgedNotebook(stored, fresh=False)
        began = time.perf_counter()
        verdict = judge_notebook(notebook, self._sandbox, self._timeout, self._log, earlier)
        return JudgedNotebook(StoredVerdict(key, verdict, time.perf_counter() - began), fresh=True)

    def stored(self, work: GradingTask, notebook: NotebookNode) -> StoredVerdict | None:
        """Return the stored verdict on a notebook rebuilt by intake if it is still valid. Judges nothing."""
        earlier = self._earlier(work.student, notebook)
        return self._verdicts.find(work, verdict_key(notebook, earlier, self._sandbox, self._timeout))

    def _earlier(self, student: str, notebook: NotebookNode) -> dict[str, str]:
        """Return the learner's modules of other notebooks, of this and earlier phases, on which this one builds."""
        needed = builds_on(notebook) - modules_of(notebook).keys()
        modules: dict[str, str] = {}
        for assignment in sorted({Exercise(name).phase for name in needed}):
            released = Path(self._coursedir.format_path(self._coursedir.release_directory, ".", assignment))
            if released.is_dir():
                for other in self.receive(student, assignment).notebooks.values():
                    modules |= {name: text for name, text in modules_of(other).items() if name in needed}
        return modules
