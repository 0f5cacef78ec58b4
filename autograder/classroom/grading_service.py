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

        One that the grader fails on is tried again later, behind the others.
        """
        now_seconds = self._clock()
        waiting = [
            one
            for one in self.queue.waiting(datetime.now(UTC).date().isoformat())
            if self._not_before.get(one.path, now_seconds) <= now_seconds
        ]
        if not waiting:
            return self._entries.grade_own()
        one = waiting[0]
        try:
            is_entry = challenge_of(one.assignment) is not None
            with nullcontext() if is_entry else grading_alone(self._folders.course):
                self.queue.begin(one)
                log.info("grading %s of %s; %d wait", one.assignment, one.learner, len(waiting) - 1)
                record = self._entries.grade(one) if is_entry else self._grade(one)
        except CourseLocked:
            raise
        except Exception as problem:  # whatever a submission does, the next one is judged all the same
            text = "%s of %s: %s; again in %.0f s"
            foreseen = isinstance(problem, (CourseFailed, ExchangeError, IntakeFailed, CannotJudge, OSError))
            log.error(text, one.assignment, one.learner, problem, _AFTER_FAILURE_SECONDS, exc_info=not foreseen)
            self._not_before[one.path] = self._clock() + _AFTER_FAILURE_SECONDS
            self.queue.put_behind(one)
        else:
            self.queue.finish(one, record)
        return True

    def _grade(self, one: Submission) -> Done:
        own_inbound = not self._folders.shares_exchange
        self._exchange(ExchangeCollect, one, own_inbound=own_inbound, only=one.path.name, update=True)
        collected = current_record(self._folders.course / COLLECTED / one.learner / one.assignment)
        if collected is None or collected.source != printable(one.path.name):
            refused = "it was refused, see collected/.refused of the course, or an earlier one is dated later"
            return Done(one.learner, one.assignment, one.path.name, now(), judged=False, problem=refused)
        self._course.autograde(one.assignment, one.learner)
        score, most = self._return(one)
        exercises = tuple(judged_exercises(self._folders.course, one.learner, one.assignment))
        best, earlier = self._best(one), self._folders.course / COLLECTED / one.learner / one.assignment
        if best is not None and self._counts == "best" and best.score > score:
            # the learner has the feedback on this one; what the gradebook keeps is the earlier one
            submitted = self._folders.course / "submitted" / one.learner / one.assignment
            if bring_back(submitted, earlier, best.folder):
                self._course.record(one.assignment, one.learner, self._course.notebooks(one.assignment))
                self._return(one)
        discard_files(earlier, _KEPT, spared="" if best is None else best.folder)
        return Done(one.learner, one.assignment, one.path.name, now(), True, score, most, exercises=exercises)

    def _return(self, one: Submission) -> tuple[float, float]:
        """Return feedback on what is graded; return its score and the highest possible one."""
        self._course.feedback(one.assignment, one.learner)
        self._exchange(ExchangeReleaseFeedback if self._folders.shares_exchange else ReleaseFeedback, one)
        return self._course.total(one.assignment, one.learner)

    def _best(self, one: Submission) -> Done | None:
        """Return the best submission of a learner for an assignment that was judged before this one."""
        (status,) = (each for each in self.queue.status(one.learner, "") if each.assignment == one.assignment)
        return max((each for each in status.done if each.judged), key=lambda each: each.score, default=None)

    def _exchange(self, kind: type[Exchange], one: Submission, **own: object) -> None:
        """Run one step of nbgrader's exchange for one learner and one assignment."""
        config = Config(self._course.config)
        config.CourseDirectory.course_id = self._folders.course_name
        config.CourseDirectory.assignment_id = one.assignment
        config.CourseDirectory.student_id = one.learner
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
        except CourseLocked:  # an instructor grades: afterwards it goes on
            time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
