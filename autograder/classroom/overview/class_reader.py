"""The class as it is now: each learner's exercises, attempts and feedback, read from the folders that the hub owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

from autograder.classroom.cached_reads import CachedReads
from autograder.classroom.folders import Folders
from autograder.classroom.grading_queue import Done, GradingQueue, Submission
from autograder.classroom.overview.attempts import Attempt, changed_attempts
from autograder.classroom.overview.folder_records import collected, feedback_pages
from autograder.classroom.overview.gradebook_marks import GradebookMarks, NotebookMarks, gradebook_marks
from autograder.classroom.overview.judged import read_verdicts
from autograder.classroom.overview.pace import Pace, paces
from autograder.classroom.overview.returned_page import ReturnedPage, returned_page
from autograder.intake.folder import printable
from autograder.intake.stamps import in_utc
from labkit.catalogue import Exercise, all_exercises
from labkit.lab_failed import LAB_FAILED

_ROUNDING = timedelta(seconds=1)


class State(Enum):
    """State of one exercise of one learner; the value is the word for it."""

    NOT_HANDED_IN = "not handed in"
    WAITS = "to be graded"
    FAILED = LAB_FAILED
    BY_HAND = "to be looked at by hand"
    NOT_WRITTEN = "nothing written"
    NO_MARKS = "no marks"
    SOME_MARKS = "some marks"
    ALL_MARKS = "all marks"


@dataclass(frozen=True)
class ExerciseStatus:
    """One exercise of one learner."""

    exercise: Exercise
    state: State
    marks: NotebookMarks | None
    """Marks; None before it is graded."""
    why: str
    """Why there was nothing to judge; empty if there was something, or if it is not judged."""
    attempts: int
    """Number of judged submissions in which it was changed."""
    newer_waits: bool
    """Whether it has marks, and a newer submission waits."""
    feedback: bool
    """Whether there is a feedback page."""
    returned: str
    """File name of that page in the exchange, where the learner finds it; empty before it is returned."""


@dataclass(frozen=True)
class AssignmentStatus:
    """One released assignment of one learner. Times are in UTC, without a time zone."""

    name: str
    due: datetime | None
    handed_in: datetime | None
    """Time at which the exchange received the newest submission; before it is graded, of a change of it, too."""
    waits: bool
    """Whether that submission is not graded yet."""
    exercises: tuple[ExerciseStatus, ...]


class ClassReader:
    """Reads the state of the class. folders: the classroom's. queue: its grading queue, whose records are read."""

    def __init__(self, folders: Folders, queue: GradingQueue) -> None:
        self._folders, self._queue = folders, queue
        self._paces: tuple[datetime | None, Mapping[str, Pace]] = None, {}
        """The class's paces, and the minute in which they were computed."""
        self._gradebook = CachedReads(gradebook_marks)
        self._verdicts = CachedReads(read_verdicts)
        self._collected = CachedReads(collected)
        self._pages = CachedReads(feedback_pages)
        self._returned_page = CachedReads(returned_page)
        self._returned = CachedReads(lambda folder: {path.name for path in folder.glob("[!.]*.html")})

    def released(self) -> dict[str, list[Exercise]]:
        """Return the exercises that are released, by assignment."""
        by_assignment: dict[str, list[Exercise]] = {}
        for exercise in all_exercises():
            if (self._folders.course / "release" / exercise.notebook_name).is_file():
                by_assignment.setdefault(exercise.phase, []).append(exercise)
        return by_assignment

    def gradebook(self) -> GradebookMarks:
        """Return all marks and due dates."""
        return self._gradebook(self._folders.course / "gradebook.db")

    def assignments(self, learners: Sequence[str]) -> dict[str, list[AssignmentStatus]]:
        """Return the status of each learner's assignments."""
        released = self.released()
        arrivals = self._queue.of_all(list(released)).newest()
        attempts = self.attempts(learners)
        return {
            learner: [
                self._assignment(learner, name, exercises, arrivals.get((learner, name)), attempts)
                for name, exercises in released.items()
            ]
            for learner in learners
        }

    def returned_pages(self, learner: str) -> dict[str, ReturnedPage]:
        """Return the newest feedback page that has come back to a learner, by notebook."""
        folder = self._folders.feedback(learner)
        if self._folders.shares_exchange:  # the course knows the names of pages in it
            pages = (self._pages(self._folders.course / "feedback" / learner / name) for name in self.released())
            paths = [folder / name for each in pages for name in each.values() if name]
        else:
            paths = list(folder.glob("[!.]*.html"))
        read = filter(None, map(self._returned_page, paths))
        return {page.notebook: page for page in sorted(read, key=lambda page: page.returned)}

    def attempts(self, learners: Iterable[str]) -> dict[tuple[str, str], list[Attempt]]:
        """Return the attempts by learner and exercise, in the course's order of exercises.

        Submissions that were graded as they came in have records. Only the last verdict on others is known.
        """
        records: dict[tuple[str, str], list[Done]] = {}
        for record in self._queue.done():
            records.setdefault((record.learner, record.assignment), []).append(record)
        released, by_exercise = self.released(), {}
        for assignment, exercises in released.items():
            for exercise in exercises:
                for learner in learners:
                    own = records.get((learner, assignment), [])
                    attempts = self._attempts_at(exercise.name, learner, assignment, own)
                    if attempts:
                        by_exercise[learner, exercise.name] = attempts
        return by_exercise

    def paces(self, learners: Sequence[str], now: datetime) -> Mapping[str, Pace]:
        """Return the pace of each exercise that somebody has tried, by its name; computed once a minute at most.

        now: with a time zone.
        """
        minute = now.replace(second=0, microsecond=0)
        if self._paces[0] != minute:
            self._paces = minute, paces(self.attempts(learners), now)
        return self._paces[1]

    def _attempts_at(self, exercise: str, learner: str, assignment: str, records: Iterable[Done]) -> list[Attempt]:
        attempts = [
            Attempt(record.finished, judged)
            for record in records
            for judged in record.exercises
            if judged.exercise == exercise
        ]
        known = {attempt.judged.key for attempt in attempts}
        place = Path(learner, assignment)
        for judged in self._verdicts(self._folders.course / "verdicts" / place).exercises:
            if judged.exercise == exercise and judged.key not in known:
                handed_in = self._collected(self._folders.course / "collected" / place).handed_in
                at = "" if handed_in is None else handed_in.replace(tzinfo=UTC).isoformat(timespec="seconds")
                attempts.append(Attempt(at, judged))
        return changed_attempts(attempts)

    def _assignment(
        self,
        learner: str,
        name: str,
        exercises: Sequence[Exercise],
        newest: Submission | None,
        attempts: Mapping[tuple[str, str], Sequence[Attempt]],
    ) -> AssignmentStatus:
        course, place, gradebook = self._folders.course, Path(learner, name), self.gradebook()
        kept = self._collected(course / "collected" / place)
        uncollected = (
            newest is not None and printable(newest.path.name) not in kept.sources and not self._queue.is_done(newest)
        )
        graded_at = gradebook.handed_in.get((learner, name))
        ungraded = (course / "submitted" / place).is_dir() and (
            graded_at is None or (kept.handed_in is not None and abs(kept.handed_in - graded_at) > _ROUNDING)
        )
        handed_in = in_utc(newest.received) if uncollected and newest is not None else kept.handed_in or graded_at
        verdicts = self._verdicts(course / "verdicts" / place)
        pages, returned = self._pages(course / "feedback" / place), self._returned(self._folders.feedback(learner))

        def status(exercise: Exercise) -> ExerciseStatus:
            notebook = Path(exercise.notebook_name).stem
            marks = gradebook.marks.get((learner, name, notebook))
            judged = next((result for result in verdicts.exercises if result.exercise == exercise.name), None)
            waits = uncollected or ungraded
            page = pages.get(notebook, "")
            return ExerciseStatus(
                exercise,
                State.FAILED if notebook in verdicts.failed else _state(marks, waits, judged is None or judged.written),
                marks if marks is not None and marks.is_judged else None,
                "" if judged is None else judged.why,
                len(attempts.get((learner, exercise.name), ())),
                waits and marks is not None and marks.is_judged,
                notebook in pages,
                page if page in returned else "",
            )

        return AssignmentStatus(
            name,
            gradebook.due_for(learner, name),
            handed_in,
            uncollected or ungraded,
            tuple(map(status, exercises)),
        )


def _state(marks: NotebookMarks | None, waits: bool, written: bool) -> State:
    if marks is None or not marks.is_judged:
        return State.WAITS if waits or marks is not None else State.NOT_HANDED_IN
    if marks.by_hand:
        return State.BY_HAND
    if marks.score >= marks.points:
        return State.ALL_MARKS
    if marks.score > 0:
        return State.SOME_MARKS
    return State.NO_MARKS if written else State.NOT_WRITTEN
