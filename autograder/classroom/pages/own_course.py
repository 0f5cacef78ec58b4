"""Data of one learner's course home: own assignments and marks as JSON, and the feedback pages behind them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tornado import web

from autograder.classroom.grading_queue import Status
from autograder.classroom.overview.class_reader import AssignmentStatus, State
from autograder.classroom.overview.pace import Pace
from autograder.classroom.overview.returned_page import ReturnedPage
from autograder.classroom.pages.page import Page, waiting_text
from autograder.classroom.pages.rendering import FEEDBACK_POLICY
from labkit.lab_failed import LAB_FAILED


class OwnCourse(Page):
    """The course of the user who asks, known by login or token. Learners' servers ask through the hub, `course_api`."""

    def get(self) -> None:
        """Answer with `course`, its name in the exchange, and `assignments`: the facts of each released one."""
        if not self.current_user:  # a program asks: the login page would be no answer
            raise web.HTTPError(403, "Ask with a token or a login of the course.")
        on_submit, returned = self.classroom.site.grading.on_submit, self.reader.returned_pages(self.user)
        queue = {status.assignment: status for status in self.queue_status() if status.assignment in on_submit}
        assignments = self.reader.assignments([self.user])[self.user]
        paces = self.reader.paces(self.classroom.learners, datetime.now(UTC))
        facts = [
            assignment_facts(assignment, queue.get(assignment.name), returned, paces) for assignment in assignments
        ]
        self.finish({"course": self.classroom.site.course.name, "assignments": facts})

    def write_error(self, status_code: int, **details: object) -> None:
        """Answer with JSON, too."""
        self.finish({"status": status_code})


class OwnFeedback(Page):
    """A feedback page that was returned to the user who asks."""

    @web.authenticated
    def get(self, name: str) -> None:
        page = next(
            (returned for returned in self.reader.returned_pages(self.user).values() if returned.path.stem == name),
            None,
        )
        if page is None:
            raise web.HTTPError(404, "You have no such feedback; newer feedback replaces it.")
        self.set_header("Content-Security-Policy", FEEDBACK_POLICY)
        self.finish(page.path.read_bytes())


def assignment_facts(
    assignment: AssignmentStatus,
    queued: Status | None,
    returned: Mapping[str, ReturnedPage],
    paces: Mapping[str, Pace],
) -> dict[str, Any]:
    """Return what a learner may know about an assignment. Of its marks, only returned ones are included.

    queued: status of an assignment that is graded as it comes in. returned: feedback pages by notebook. paces: of the
    class, by exercise.

    Times are in UTC, ISO 8601, null if there is none: when it is `due`, and when the newest submission was `handed_in`.
    `waiting` is what that submission waits for, as a sentence; `place` its place in the queue, 0 if it is in none;
    `tries_left` those of today, null where the instructor grades. Each of the `notebooks` has its path below the
    workspace, and `marks`, null or with the path of its `feedback` below the course's page; `others` has how many
    learners are `complete` and the median of their `attempts`, null while they are few.
    """
    return {
        "name": assignment.name,
        "due": _in_utc(assignment.due),
        "handed_in": _in_utc(assignment.handed_in),
        "waiting": _waiting(assignment, queued),
        "place": queued.place if queued else 0,
        "tries_left": queued.tries_left if queued else None,
        "notebooks": [
            {
                "notebook": one.notebook_name,
                "marks": _marks(returned.get(Path(one.notebook_name).stem)),
                "others": _others(paces.get(one.name)),
            }
            for one in (status.exercise for status in assignment.exercises)
        ],
    }


def _waiting(assignment: AssignmentStatus, queued: Status | None) -> str:
    if any(status.state is State.FAILED for status in assignment.exercises):
        return f"It is judged again later: {LAB_FAILED}."
    if queued is None:
        return "It waits to be graded." if assignment.waits else ""
    if not (text := waiting_text(queued)) and queued.done and queued.done[0].problem:
        return f"It was not judged: {queued.done[0].problem}"
    return text


def _marks(page: ReturnedPage | None) -> dict[str, Any] | None:
    if page is None:
        return None
    return {"score": page.score, "points": page.points, "feedback": f"feedback/{page.path.name}"}


def _others(pace: Pace | None) -> dict[str, Any] | None:
    if pace is None or not pace.is_shown_to_learners:
        return None
    return {"complete": pace.complete, "attempts": pace.attempts}


def _in_utc(time: datetime | None) -> str | None:
    return None if time is None else time.replace(tzinfo=UTC).isoformat(timespec="seconds")
