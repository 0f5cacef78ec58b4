"""Grades submissions as they come in: collect, judge in the sandbox, write feedback, return it. A service of the hub.

Entries of challenges come through the same queue; challenges/grader.py judges them.

Each step does nothing, or the same again, if it was done before: the service may be killed at any point.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import Exchange, ExchangeReleaseFeedback
from traitlets.config import Config

from autograder.batch.lock import CourseLocked, grading_alone
from autograder.classroom import configured
from autograder.classroom.challenges.entries import challenge_of
from autograder.classroom.challenges.grader import EntryGrader, now
from autograder.classroom.challenges.leaderboard import Leaderboard
from autograder.classroom.exchange import ReleaseFeedback
from autograder.classroom.grading_queue import Done, GradingQueue, Submission
from autograder.classroom.overview.judged import judged_exercises
from autograder.course_folder import Course, CourseFailed
from autograder.gradebook_lock import GradebookLocked
from autograder.intake.collect import COLLECTED, ExchangeCollect
from autograder.intake.folder import printable
from autograder.intake.keeping import bring_back, discard_files
from autograder.intake.limits import IntakeFailed
from autograder.intake.stamps import current_record
from labkit.checks import CannotJudge

_PAUSE_SECONDS = 1.0
_AFTER_FAILURE_SECONDS = 30.0
_KEPT = 5
"""Earlier submissions of a learner for an assignment whose files are kept, besides the best one's."""

log = logging.getLogger("grading")


class GradingService:
    """Grades one submission after the other. clock: in seconds, for submissions that are tried again later."""

    def __init__(self, classroom: configured.Classroom, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        site, folders = classroom.site, classroom.folders
        self._folders = folders
        self._counts = site.grading.counts
        self._course = Course(folders.course, Config(FeedbackExporter={"reveal": site.grading.feedback}))
        self._not_before: dict[Path, float] = {}
        people = [*site.course.instructors, *classroom.learners]
        self._entries = EntryGrader(Leaderboard(folders.challenges), people, site.challenges.open)
        self.queue = GradingQueue.of(folders, site)

    def step(self) -> bool:
        """Grade the next submission or entry; return whether there was one. Raises `CourseLocked`.

        A submission on which the grader fails is tried again later, behind the others.
        """
        now_seconds = self._clock()
        waiting = [
            submission
            for submission in self.queue.waiting(datetime.now(UTC).date().isoformat())
            if self._not_before.get(submission.path, now_seconds) <= now_seconds
        ]
        if not waiting:
            return self._entries.grade_own()
        submission = waiting[0]
        try:
            is_entry = challenge_of(submission.assignment) is not None
            with nullcontext() if is_entry else grading_alone(self._folders.course):
                self.queue.begin(submission)
                log.info("grading %s of %s; %d wait", submission.assignment, submission.learner, len(waiting) - 1)
                record = self._entries.grade(submission) if is_entry else self._grade(submission)
        except CourseLocked:
            raise
        except (Exception, GradebookLocked) as problem:  # whatever a submission does, the next one is judged
            text = "%s of %s: %s; again in %.0f s"
            foreseen = isinstance(
                problem, (CourseFailed, ExchangeError, GradebookLocked, IntakeFailed, CannotJudge, OSError)
            )
            log.error(
                text, submission.assignment, submission.learner, problem, _AFTER_FAILURE_SECONDS, exc_info=not foreseen
            )
            self._not_before[submission.path] = self._clock() + _AFTER_FAILURE_SECONDS
            self.queue.put_behind(submission)
        else:
            self.queue.finish(submission, record)
        return True

    def _grade(self, submission: Submission) -> Done:
        own_inbound = not self._folders.shares_exchange
        self._exchange(ExchangeCollect, submission, own_inbound=own_inbound, only=submission.path.name, update=True)
        collected = current_record(self._folders.course / COLLECTED / submission.learner / submission.assignment)
        if collected is None or collected.source != printable(submission.path.name):
            refused = "it was refused, see collected/.refused of the course, or a later one was collected before it"
            return Done(
                submission.learner, submission.assignment, submission.path.name, now(), judged=False, problem=refused
            )
        self._course.autograde(submission.assignment, submission.learner)
        score, most = self._return(submission)
        exercises = tuple(judged_exercises(self._folders.course, submission.learner, submission.assignment))
        best, earlier = (
            self._best(submission),
            self._folders.course / COLLECTED / submission.learner / submission.assignment,
        )
        if best is not None and self._counts == "best" and best.score > score:
            # the learner has the feedback on this one; the gradebook keeps the earlier, better one
            submitted = self._folders.course / "submitted" / submission.learner / submission.assignment
            if bring_back(submitted, earlier, best.folder):
                self._course.record(
                    submission.assignment, submission.learner, self._course.notebooks(submission.assignment)
                )
                self._return(submission)
        discard_files(earlier, _KEPT, spared="" if best is None else best.folder)
        return Done(
            submission.learner,
            submission.assignment,
            submission.path.name,
            now(),
            True,
            score,
            most,
            exercises=exercises,
        )

    def _return(self, submission: Submission) -> tuple[float, float]:
        """Return feedback on what is graded; return its score and the highest possible one."""
        self._course.feedback(submission.assignment, submission.learner)
        self._exchange(ExchangeReleaseFeedback if self._folders.shares_exchange else ReleaseFeedback, submission)
        return self._course.total(submission.assignment, submission.learner)

    def _best(self, submission: Submission) -> Done | None:
        """Return the best submission of a learner for an assignment that was judged before this one."""
        (status,) = (
            each for each in self.queue.status(submission.learner, "") if each.assignment == submission.assignment
        )
        return max((each for each in status.done if each.judged), key=lambda each: each.score, default=None)

    def _exchange(self, kind: type[Exchange], submission: Submission, **own: object) -> None:
        """Run one step of nbgrader's exchange for one learner and one assignment."""
        config = Config(self._course.config)
        config.CourseDirectory.course_id = self._folders.course_name
        config.CourseDirectory.assignment_id = submission.assignment
        config.CourseDirectory.student_id = submission.learner
        config.Exchange.root = str(self._folders.exchange)
        config[kind.__name__].update(own)
        coursedir = CourseDirectory(config=config, log=log)
        kind(coursedir=coursedir, authenticator=Authenticator(config=config), config=config, log=log).start()


def main() -> None:
    """Grade until the hub ends."""
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s grading] %(message)s")
    service = GradingService(configured.from_environment())
    while True:
        try:
            if not service.step():
                time.sleep(_PAUSE_SECONDS)
        except CourseLocked:  # an instructor is grading: go on afterwards
            time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
