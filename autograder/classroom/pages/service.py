"""The course's page: a service of the hub behind its login. It only reads; nothing can be sent to it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado import ioloop, web

from autograder.classroom import configured
from autograder.classroom.challenges.entries import assignment_of, withdrawal_of
from autograder.classroom.grading_queue import Done, GradingQueue
from autograder.classroom.limits import notices
from autograder.classroom.overview.class_reader import ClassReader
from autograder.classroom.pages.class_pages import ClassPage, GradesFile, LearnersFeedback
from autograder.classroom.pages.own_course import OwnCourse, OwnFeedback
from autograder.classroom.pages.page import PREFIX, Elsewhere, Page, today, waiting_text
from autograder.classroom.pages.rendering import utc_minute
from autograder.classroom.pages.servers import running
from labkit.challenges.challenge import Row, find


@dataclass(frozen=True)
class OwnEntry:
    """One of the learner's entries, as the learner sees it."""

    finished: str
    """Time of judging: UTC, ISO 8601."""
    name: str
    score: float
    """Score in the challenge's unit; 0 if it does not count."""
    fault: str
    withdrawn: bool = False


class Index(Page):
    """Page of the learner's submissions, and of the challenges."""

    @web.authenticated
    def get(self) -> None:
        site = self.classroom.site
        states = [(find(name), "open") for name in site.challenges.open]
        states += [(find(name), "over; traces can be downloaded") for name in site.challenges.traces]
        submissions = [
            (status, waiting_text(status))
            for status in self.queue_status()
            if status.assignment in site.grading.on_submit
        ]
        grading = site.grading
        own_notices = notices.read(self.classroom.folders.notices(self.user))
        self.show(
            "index",
            gpus=site.gpus is not None,
            challenges=states,
            submissions=submissions,
            notices=[(utc_minute(notice.time), notice.text) for notice in reversed(own_notices.notices)],
            disk=None if own_notices.disk_bytes is None else (own_notices.disk_bytes / 2**30, site.servers.disk_gib),
            tries=grading.tries_per_day,
            counts=grading.counts,
            servers=running(self.classroom.folders, self.hub_process.pid) if self.is_instructor else None,
            queue=len(self.queue.waiting(today())) if self.is_instructor else 0,
        )


class ChallengePage(Page):
    """Standings of a challenge, and the learner's own entries."""

    @web.authenticated
    def get(self, name: str) -> None:
        challenge, site = self.challenge(name), self.classroom.site
        statuses = [status for status in self.queue_status() if status.assignment == assignment_of(name)]
        refused = [done for status in statuses for done in status.done if not done.judged]
        over = name in site.challenges.traces
        standings = (self.leaderboard.final if over else self.leaderboard).standings(name)
        self.show(
            "challenge",
            challenge=challenge,
            user=self.user,
            standings=standings,
            instances=list(standings[0].row.values) if standings else [],
            traces=over,
            open=name in site.challenges.open,
            tries=site.grading.tries_per_day,
            waiting="".join(map(waiting_text, statuses)),
            withdraws=any(
                status.is_unjudged for status in self.queue_status() if status.assignment == withdrawal_of(name)
            ),
            own_entries=self._own_entries(name, refused),
        )

    def _own_entries(self, name: str, refused: list[Done]) -> list[OwnEntry]:
        """Return the learner's entries, newest first; after the challenge, with their results on the new instances."""
        entries = [OwnEntry(done.finished, "", 0.0, f"refused: {done.problem}") for done in refused]
        for result in (*self.leaderboard.results(name), *self.leaderboard.final.results(name)):
            if result.author == self.user:
                score = Row("", result.values).score if result.values else 0.0
                withdrawn = self.leaderboard.is_withdrawn(name, self.user, result.sent)
                entries.append(OwnEntry(result.finished, result.name, score, result.fault, withdrawn))
        return sorted(entries, key=lambda entry: entry.finished, reverse=True)


class TraceFile(Page):
    """One trace, for everybody once the instructor has opened the challenge's."""

    @web.authenticated
    def get(self, name: str, id: str, number: str) -> None:
        self.challenge(name)
        if name not in self.classroom.site.challenges.traces:
            raise web.HTTPError(403, "Your instructor has not opened the traces of this challenge.")
        board = self.leaderboard.final
        instances = list(board.bounds(name))
        path = board.trace(name, id, instances[int(number)]) if int(number) < len(instances) else None
        if path is None:
            raise web.HTTPError(404, "There is no such trace; it may have been too large to keep.")
        self.set_header("Content-Type", "application/json")
        self.set_header("Content-Disposition", f'attachment; filename="{name}-{id}-{number}.json"')
        self.finish(path.read_bytes())


def application(classroom: configured.Classroom) -> web.Application:
    """Return the service's web application."""
    queue = GradingQueue.of(classroom.folders, classroom.site)
    prefix, given = os.environ[PREFIX], {"classroom": classroom}
    return web.Application(
        [
            (prefix, Index, given),
            (f"{prefix}challenges/([a-z0-9_]+)", ChallengePage, given),
            (rf"{prefix}challenges/([a-z0-9_]+)/([0-9a-f]+)/(\d{{1,3}})\.json", TraceFile, given),
            (f"{prefix}mine", OwnCourse, given),
            (rf"{prefix}feedback/(\w+)\.html", OwnFeedback, given),
            (f"{prefix}class", ClassPage, given),
            (rf"{prefix}class/grades-(csv|canvas|moodle)\.csv", GradesFile, given),
            (rf"{prefix}class/([a-z0-9._-]+)/(\w+)/(\w+)\.html", LearnersFeedback, given),
            (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
        ],
        default_handler_class=Elsewhere,
        default_handler_args=given,
        cookie_secret=os.urandom(32),
        xsrf_cookies=True,
        queue=queue,
        reader=ClassReader(classroom.folders, queue),
    )


def main() -> None:
    """Answer until the hub ends."""
    logging.basicConfig(level=logging.WARNING, format="[%(levelname).1s %(asctime)s classroom] %(message)s")
    address = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    application(configured.from_environment()).listen(int(address.port or 80), str(address.hostname), xheaders=True)
    ioloop.IOLoop.current().start()


if __name__ == "__main__":
    main()
