"""The ledger as a service of the hub: cells ask it, learners see their own part, instructors all, and stop jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado import ioloop, web

from autograder.classroom import configured
from autograder.classroom.gpus.ledger import Ledger, day_name
from autograder.classroom.gpus.slurm_jobs import SlurmFailed
from autograder.classroom.gpus.watch import Watch
from autograder.classroom.pages.page import PREFIX, Elsewhere, Page
from autograder.classroom.pages.rendering import HEADERS

LOOK_SECONDS = 5.0
"""Time between looks, by which a job may overrun what is left."""


class GpuPage(Page):
    """A page about GPUs."""

    @property
    def watch(self) -> Watch:
        watch: Watch = self.settings["watch"]
        return watch

    def set_default_headers(self) -> None:
        """Forbid scripts and frames; forms go here alone."""
        for name, value in HEADERS.items():
            self.set_header(name, value.replace("form-action 'none'", "form-action 'self'"))

    def account(self, user: str, now: float) -> dict[str, Any]:
        """Return what a user has used today, what is left, and why jobs were ended."""
        used, limits = self.watch.ledger.used(now).get(user, 0), self.watch.limits
        return {
            "used": used,
            "left": max(0, limits.seconds_per_day - used),
            "seconds_per_day": limits.seconds_per_day,
            "longest_minutes": limits.longest_minutes,
            "most_ranks": limits.most_ranks,
            "notices": [{"job": one.job, "text": one.text} for one in self.watch.ledger.notices(user, now)],
        }


class Mine(GpuPage):
    """The account of whoever asks, for cells: JSON."""

    @web.authenticated
    def get(self) -> None:
        self.finish(self.account(self.user, time.time()))


class Overview(GpuPage):
    """Who uses what: one's own, or everybody's for instructors."""

    @web.authenticated
    def get(self) -> None:
        now, watch, everybody = time.time(), self.watch, self.is_instructor
        used = watch.ledger.used(now)
        people = sorted({*watch.learners, *used}, key=lambda name: (-used.get(name, 0), name))
        self.show(
            "gpus",
            account=self.account(self.user, now),
            is_instructor=everybody,
            people=[(name, used.get(name, 0)) for name in people] if everybody else [],
            jobs=[(job, gpus) for job, gpus in watch.jobs if everybody or job.user == self.user],
            day=day_name(now),
            problem=watch.problem if everybody else "",
            xsrf=self.xsrf_token.decode() if everybody else "",
        )


class Stop(GpuPage):
    """Ends a job, for instructors."""

    @web.authenticated
    def post(self) -> None:
        if not self.is_instructor:
            raise web.HTTPError(403, "Only instructors stop jobs here; scancel stops your own.")
        try:
            if not self.watch.stop(self.get_body_argument("job"), self.user):
                raise web.HTTPError(404, "No job of the course with a GPU has this number; it may have ended.")
        except SlurmFailed as problem:
            raise web.HTTPError(502, f"Slurm has refused that: {problem}") from None
        self.redirect(os.environ[PREFIX])


async def keep_looking(watch: Watch) -> None:
    """Look until the service ends."""
    while True:
        try:
            await asyncio.to_thread(watch.look)
        except Exception:  # the limits must hold after a look that failed for any other reason, too
            logging.getLogger("gpus").exception("a look at the jobs has failed")
            watch.problem = "the last look at the jobs has failed; the hub's log has the reason"
        await asyncio.sleep(LOOK_SECONDS)


def application(classroom: configured.Classroom, watch: Watch) -> web.Application:
    """Return the service's web application."""
    prefix, given = os.environ[PREFIX], {"classroom": classroom}
    return web.Application(
        [
            (prefix, Overview, given),
            (f"{prefix}mine", Mine, given),
            (f"{prefix}stop", Stop, given),
            (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
        ],
        default_handler_class=Elsewhere,
        default_handler_args=given,
        cookie_secret=os.urandom(32),
        xsrf_cookies=True,
        watch=watch,
    )


def main() -> None:
    """Answer and look until the hub ends."""
    logging.basicConfig(level=logging.WARNING, format="[%(levelname).1s %(asctime)s gpus] %(message)s")
    classroom = configured.from_environment()
    site, address = classroom.site, urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    assert site.gpus is not None, "the hub starts this service only then"
    ledger = Ledger(classroom.folders.gpu_ledger)
    watch = Watch(ledger, site.gpus, classroom.learners, site.course.instructors)
    application(classroom, watch).listen(int(address.port or 80), str(address.hostname), xheaders=True)
    loop = ioloop.IOLoop.current()
    loop.add_callback(keep_looking, watch)
    loop.start()


if __name__ == "__main__":
    main()
