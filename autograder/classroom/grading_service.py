"""Grades submissions as they come in: collect, judge in the sandbox, write feedback, return it. A service of the hub.

Submissions of several learners are judged side by side, by as many workers as the site gives; this process alone
collects them and writes the gradebook, one after the other. Entries of challenges come through the same queue, and are
judged one at a time beside all submissions (challenges/grader.py), so neither waits for the other.

Each step does nothing, or the same again, if it was done before: the service may be killed at any point.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import Exchange, ExchangeReleaseFeedback
from traitlets.config import Config

from autograder.batch.launch import WorkerForkServer, begin
from autograder.batch.lock import CourseLocked, grading_alone
from autograder.batch.pool import Outcome, Pool, PoolFailed
from autograder.batch.run import wanted
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
from autograder.verdicts.store import GradingTask, VerdictStore
from labkit.checks import CannotJudge

_PAUSE_SECONDS = 1.0
_AFTER_FAILURE_SECONDS = 30.0
_KEPT = 5
"""Earlier submissions of a learner for an assignment whose files are kept, besides the best one's."""

log = logging.getLogger("grading")


@dataclass
class _Judging:
    """A submission that is with the workers."""

    submission: Submission
    left: set[GradingTask]
    """Notebooks without an outcome."""
    errors: list[str] = field(default_factory=list)
    """Why notebooks could not be judged, which costs no marks."""


class GradingService:
    """Grades submissions.

    clock: in seconds, for submissions that are tried again later. forkserver: of the workers that judge.
    """

    def __init__(
        self,
        classroom: configured.Classroom,
        clock: Callable[[], float] = time.monotonic,
        forkserver: WorkerForkServer | None = None,
    ) -> None:
        self._clock = clock
        site, folders = classroom.site, classroom.folders
        self._folders = folders
        self._counts = site.grading.counts
        self._course = Course(folders.course, Config(FeedbackExporter={"reveal": site.grading.feedback}))
        self._verdicts = VerdictStore(folders.course)
        self._not_before: dict[Path, float] = {}
        people = [*site.course.instructors, *classroom.learners]
        challenges = site.challenges
        self._entries = EntryGrader(Leaderboard(folders.challenges), people, challenges.open, challenges.traces)
        self.queue = GradingQueue.of(folders, site)
        self._most = site.grading.workers
        self._forkserver = forkserver or WorkerForkServer()
        self._pool = Pool(folders.course, self._course.options, self._most, self._forkserver)
        self._judging: list[_Judging] = []
        self._judged: list[Submission] = []
        """Submissions whose verdicts are stored, but not written to the gradebook."""
        self._entry_judge = ThreadPoolExecutor(1, "entries")
        self._has_challenges = bool(challenges.open or challenges.traces)
        self._own_not_before = -math.inf
        """When entries that nobody waits for are tried again, after one that could not be judged."""
        self._entry: tuple[Submission | None, Future[Done | bool]] | None = None
        """The entry that is judged now; None for one that nobody waits for."""

    def close(self) -> None:
        """End the workers, and wait for the entry that is judged."""
        self._entry_judge.shutdown()
        self._pool.close()
        self._forkserver.close()

    def step(self, seconds: float = _PAUSE_SECONDS) -> bool:
        """Begin with submissions that wait, finish those that are judged; return whether there is more to do.

        Waits for so long for something to be judged. A submission on which the grader fails is tried again later,
        behind the others. Raises `CourseLocked`; the next step goes on.
        """
        begun = self._begin()
        self._hear(seconds)
        finished = self._finish()
        if not self._pool.is_busy:
            self._pool.dismiss()
        return begun or finished or bool(self._judging) or self._entry is not None

    def _begin(self) -> bool:
        """Begin with the next submissions, one of a learner at a time; return whether there was one."""
        now_seconds, begun = self._clock(), False
        waiting = [
            submission
            for submission in self.queue.waiting(datetime.now(UTC).date().isoformat())
            if self._not_before.get(submission.path, now_seconds) <= now_seconds
        ]
        for submission in waiting:
            if challenge_of(submission.assignment) is not None:
                if self._entry is None:
                    self._begin_entry(submission, len(waiting))
                    begun = True
            elif len(self._judging) < self._most and submission.learner not in self._learners:
                self._begin_submission(submission, len(waiting))
                begun = True
        if self._has_challenges and not waiting and self._entry is None and self._own_not_before <= now_seconds:
            self._entry = (None, self._entry_judge.submit(self._entries.grade_unsent))
        return begun

    @property
    def _learners(self) -> set[str]:
        """Learners whose submissions are with the workers, or not written down yet."""
        return {each.learner for each in (*(judging.submission for judging in self._judging), *self._judged)}

    def _begin_entry(self, entry: Submission, waiting: int) -> None:
        try:
            self.queue.begin(entry)
        except OSError as problem:  # the disk is full
            self._try_again(entry, problem)
            return
        log.info("judging an entry of %s for %s; %d wait", entry.learner, entry.assignment, waiting - 1)
        self._entry = (entry, self._entry_judge.submit(self._entries.grade, entry))

    def _begin_submission(self, submission: Submission, waiting: int) -> None:
        try:
            with grading_alone(self._folders.course):
                self.queue.begin(submission)
                log.info("grading %s of %s; %d wait", submission.assignment, submission.learner, waiting - 1)
                refused = self._collect(submission)
                if refused is not None:
                    self.queue.finish(submission, refused)
                    return
                tasks = wanted(self._course, submission.assignment, [submission.learner])
        except CourseLocked:
            raise
        except (Exception, GradebookLocked) as problem:  # whatever a submission does, the next one is judged
            self._try_again(submission, problem)
            return
        self._judging.append(_Judging(submission, set(tasks)))
        self._pool.add(tasks)

    def _hear(self, seconds: float) -> None:
        """Take in what the workers have judged. Waits for so long, also for an entry, unless nothing is judged."""
        if self._pool.is_busy:
            try:
                for outcome in self._pool.arrived(seconds):
                    self._take(outcome)
            except PoolFailed as problem:
                self._pool.close(at_once=True)
                for judging in self._judging:
                    self._try_again(judging.submission, problem)
                self._judging.clear()
        elif self._entry is not None:
            futures.wait([self._entry[1]], seconds)

    def _take(self, outcome: Outcome) -> None:
        judging = next(each for each in self._judging if outcome.work in each.left)
        judging.left.remove(outcome.work)
        if outcome.stored is None:
            judging.errors.append(f"{outcome.work.notebook}: {outcome.error}")
            with contextlib.suppress(OSError):  # the disk is full
                self._verdicts.fail(outcome.work, outcome.error, outcome.attempts)
        elif outcome.fresh:
            try:
                self._verdicts.keep(outcome.work, outcome.stored)
            except OSError as problem:  # the disk is full
                judging.errors.append(f"{outcome.work.notebook}: its verdict was not stored: {problem}")
        if not judging.left:
            self._judging.remove(judging)
            if judging.errors:
                self._try_again(judging.submission, CannotJudge("; ".join(judging.errors)))
            else:
                self._judged.append(judging.submission)

    def _finish(self) -> bool:
        """Write down what has been judged, and return it; return whether there was something."""
        finished = False
        if self._entry is not None and self._entry[1].done():
            (entry, judged), self._entry = self._entry, None
            if entry is None:
                finished = self._settle_own(judged)
            else:
                self._settle(entry, judged.result)
                finished = True
        while self._judged:
            with grading_alone(self._folders.course):
                submission = self._judged.pop(0)
                self._settle(submission, partial(self._graded, submission))
            finished = True
        return finished

    def _settle(self, submission: Submission, done: Callable[[], Done | bool]) -> None:
        try:
            record = done()
            assert isinstance(record, Done)
        except (Exception, GradebookLocked) as problem:  # whatever a submission does, the next one is judged
            self._try_again(submission, problem)
        else:
            self.queue.finish(submission, record)

    def _settle_own(self, judged: Future[Done | bool]) -> bool:
        """Return whether an entry that nobody waits for has been judged."""
        try:
            return bool(judged.result())
        except Exception:  # learners' submissions do not wait for it
            log.exception("an entry that nobody waits for; again in %.0f s", _AFTER_FAILURE_SECONDS)
            self._own_not_before = self._clock() + _AFTER_FAILURE_SECONDS
            return False

    def _try_again(self, submission: Submission, problem: BaseException) -> None:
        text = "%s of %s: %s; again in %.0f s"
        foreseen = isinstance(
            problem, (CourseFailed, ExchangeError, GradebookLocked, IntakeFailed, CannotJudge, PoolFailed, OSError)
        )
        log.error(
            text,
            submission.assignment,
            submission.learner,
            problem,
            _AFTER_FAILURE_SECONDS,
            exc_info=not foreseen and problem,
        )
        self._not_before[submission.path] = self._clock() + _AFTER_FAILURE_SECONDS
        self.queue.put_behind(submission)

    def _collect(self, submission: Submission) -> Done | None:
        """Collect a submission; return its record if it was refused."""
        own_inbound = not self._folders.shares_exchange
        self._exchange(ExchangeCollect, submission, own_inbound=own_inbound, only=submission.path.name, update=True)
        collected = current_record(self._folders.course / COLLECTED / submission.learner / submission.assignment)
        if collected is not None and collected.source == printable(submission.path.name):
            return None
        refused = "it was refused, see collected/.refused of the course, or a later one was collected before it"
        return Done(
            submission.learner, submission.assignment, submission.path.name, now(), judged=False, problem=refused
        )

    def _graded(self, submission: Submission) -> Done:
        """Write a judged submission down, and return it to its learner."""
        # it finds the stored verdicts, and judges only what has changed since
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
    begin()
    # forked before there are threads
    service = GradingService(configured.from_environment(), forkserver=WorkerForkServer(forked=True))
    while True:
        try:
            if not service.step():
                time.sleep(_PAUSE_SECONDS)
        except CourseLocked:  # an instructor is grading: go on afterwards
            time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
