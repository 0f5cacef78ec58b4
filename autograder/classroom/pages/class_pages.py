"""The instructors' pages: the class at a glance, a learner's feedback, and marks as files."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tornado import web

from autograder.classroom.overview.attempts import stuck_learners, wrong_answers
from autograder.classroom.overview.class_reader import AssignmentStatus, State
from autograder.classroom.pages.page import Page, today
from autograder.classroom.pages.rendering import FEEDBACK_POLICY

SYMBOLS = {
    State.NOT_HANDED_IN: "·",
    State.WAITS: "○",
    State.FAILED: "!",
    State.BY_HAND: "?",
    State.NOT_WRITTEN: "□",
    State.NO_MARKS: "✗",
    State.SOME_MARKS: "◐",
    State.ALL_MARKS: "✓",
}
"""A sign for each state, beside its word."""

_MOST_ANSWERS = 3
"""Maximum wrong answers shown for one exercise."""


class InstructorPage(Page):
    """A page that learners may not see."""

    async def prepare(self) -> None:
        """Refuse everybody but instructors."""
        await super().prepare()
        if self.current_user and not self.is_instructor:
            raise web.HTTPError(403, "This page is for instructors.")


class ClassPage(InstructorPage):
    """Learners and exercises, who is stuck, common wrong answers, the queue."""

    @web.authenticated
    def get(self) -> None:
        learners, reader = self.classroom.learners, self.reader
        shown = reader.assignments(learners)
        attempts = reader.attempts(learners)
        answers, pace_of = wrong_answers(attempts), reader.paces(learners, datetime.now(UTC))
        exercises = [exercise for group in reader.released().values() for exercise in group]
        self.show(
            "class",
            released=reader.released(),
            learners=shown,
            symbols=SYMBOLS,
            stuck=stuck_learners(attempts),
            answers=[
                (exercise, [answer for answer in answers if answer.exercise == exercise.name][:_MOST_ANSWERS])
                for exercise in exercises
                if any(answer.exercise == exercise.name for answer in answers)
            ],
            with_feedback={
                exercise.name: [
                    learner
                    for learner, assignments in shown.items()
                    for assignment in assignments
                    for status in assignment.exercises
                    if status.exercise == exercise and status.feedback
                ]
                for exercise in exercises
            },
            names={exercise.name: exercise for exercise in exercises},
            paces=[pace for exercise in exercises if (pace := pace_of.get(exercise.name))],
            week=self.week(shown),
            queue=self.queue.waiting(today()),
        )

    def week(self, shown: Mapping[str, Sequence[AssignmentStatus]]) -> list[tuple[str, datetime | None, int]]:
        """Each released assignment with its due date, the class's (UTC), and how many learners have handed it in."""
        due = self.reader.gradebook().due
        handed_in = Counter(one.name for own in shown.values() for one in own if one.handed_in is not None)
        return [(name, due.get(name), handed_in[name]) for name in self.reader.released()]


class LearnersFeedback(InstructorPage):
    """The feedback page of one learner's notebook, as the learner gets it."""

    @web.authenticated
    def get(self, learner: str, assignment: str, notebook: str) -> None:
        exercises = self.reader.released().get(assignment, [])
        known = [Path(exercise.notebook_name).stem for exercise in exercises]
        path = self.classroom.folders.course / "feedback" / learner / assignment / f"{notebook}.html"
        if learner not in self.classroom.learners or notebook not in known or not path.is_file():
            raise web.HTTPError(404, "There is no feedback on this yet.")
        self.set_header("Content-Security-Policy", FEEDBACK_POLICY)
        self.finish(path.read_bytes())


class GradesFile(InstructorPage):
    """All marks, as `labkit grades` writes them."""

    @web.authenticated
    async def get(self, kind: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "grades.csv")
            course = f"--course={self.classroom.folders.course}"
            command = [sys.executable, "-P", "-m", "labkit", "grades", f"--to={path}", course]
            process = await asyncio.create_subprocess_exec(
                *command,
                *(() if kind == "csv" else (f"--lms={kind}",)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            _, errors = await process.communicate()
            if process.returncode:
                raise web.HTTPError(500, f"The marks could not be written: {errors.decode(errors='replace')[-500:]}")
            text = path.read_bytes()
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="grades-{kind}.csv"')
        await self.finish(text)
