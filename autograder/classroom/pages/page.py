"""Base class of the service's pages: identifies the user, and answers from templates and the classroom's files."""

from __future__ import annotations

import http.client
import os
from datetime import UTC, datetime
from typing import Any

import psutil
from jupyterhub.services.auth import HubOAuthenticated
from tornado import web

from autograder.classroom import addresses, configured
from autograder.classroom.challenges.leaderboard import Leaderboard
from autograder.classroom.grading_queue import GradingQueue, Status
from autograder.classroom.overview.class_reader import ClassReader
from autograder.classroom.pages import rendering
from autograder.classroom.site import GPU_SERVICE
from labkit.challenges.challenge import Challenge, find

PREFIX = "JUPYTERHUB_SERVICE_PREFIX"


def today() -> str:
    """Return the day in UTC, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def waiting_text(status: Status) -> str:
    """Return a sentence with the newest submission's place in the queue; empty if it is judged."""
    if status.place == 1:
        return "It is being judged now."
    if status.place:
        return f"It waits: place {status.place} of {status.waiting} in the queue."
    if status.is_unjudged:
        return "It waits for tomorrow (UTC): today's tries are used."
    return ""


class Page(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]  # JupyterHub has no types
    """A page for people of the course."""

    def initialize(self, classroom: configured.Classroom) -> None:
        """classroom: its settings and folders."""
        self.classroom = classroom

    def set_default_headers(self) -> None:
        """Forbid scripts, frames and forms."""
        for name, value in rendering.HEADERS.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Ask the hub who this is, without blocking other requests."""
        await self.hub_auth.get_user(self, sync=False)

    @property
    def user(self) -> str:
        return str(self.current_user["name"])

    def show(self, template: str, **values: Any) -> None:
        """Answer with a page."""
        site = self.classroom.site
        links = {"hub": addresses.hub(site), "course_page": addresses.page(site)}
        links["gpus_page"] = f"{addresses.service(site, GPU_SERVICE)}/"
        course = site.course.name
        self.finish(rendering.page(template, prefix=os.environ[PREFIX], course=course, **links, **values))

    def write_error(self, status_code: int, **details: Any) -> None:
        """Answer with an error page."""
        problem = details.get("exc_info", (None, None))[1]
        message = problem.log_message if isinstance(problem, web.HTTPError) and problem.log_message else ""
        self.show("error", status=status_code, reason=http.client.responses.get(status_code, "Error"), message=message)

    def challenge(self, name: str) -> Challenge:
        """Return a challenge that is shown. Raises `web.HTTPError`."""
        shown = self.classroom.site.challenges
        if name not in (*shown.open, *shown.traces):
            raise web.HTTPError(404, f"No challenge {name!r} is open in this course.")
        return find(name)

    @property
    def is_instructor(self) -> bool:
        return self.user in self.classroom.site.course.instructors

    @property
    def hub_process(self) -> psutil.Process:
        """The hub, which has started this service and all servers."""
        return psutil.Process(os.getppid())

    @property
    def queue(self) -> GradingQueue:
        """The classroom's queue, which remembers what it has read."""
        queue: GradingQueue = self.settings["queue"]
        return queue

    @property
    def reader(self) -> ClassReader:
        """The classroom's reader, which remembers what it has read."""
        reader: ClassReader = self.settings["reader"]
        return reader

    def queue_status(self) -> list[Status]:
        """Return the status of the learner's submissions and entries."""
        return self.queue.status(self.user, today())

    @property
    def leaderboard(self) -> Leaderboard:
        return Leaderboard(self.classroom.folders.challenges)


class Elsewhere(Page):
    """Any other address."""

    @web.authenticated
    def get(self) -> None:
        raise web.HTTPError(404, "There is no such page.")
