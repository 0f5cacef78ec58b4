"""The ledger as a service of the hub: cells ask it, learners see their own use, instructors see all and stop jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado import web

from autograder.classroom import configured
from autograder.classroom.gpus import slurm_jobs
from autograder.classroom.gpus.gpu_page import ForCells, GpuPage
from autograder.classroom.gpus.jobs import Scheduler, SchedulerFailed
from autograder.classroom.gpus.kubernetes.cluster import Cluster
from autograder.classroom.gpus.kubernetes.pod_jobs import PodJobs
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.kubernetes.turns import Turns
from autograder.classroom.gpus.ledger import Ledger, day_name
from autograder.classroom.gpus.watch import Watch
from autograder.classroom.pages.page import PREFIX, Elsewhere
from autograder.classroom.site import GpuPods, port_of
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.login import as_service
from labkit.clusters.kubernetes.manifest import SECRET_LIMIT_BYTES
from labkit.clusters.kubernetes.pod_template import read_template

LOOK_SECONDS = 5.0
"""Seconds between looks: a job may exceed its limit by as much."""


class Mine(ForCells):
    """The account of the user who asks, as JSON."""

    def get(self) -> None:
        self.finish(self.account(self.user, time.time()))


class Overview(GpuPage):
    """Page of GPU use: a learner's own, or everybody's for instructors."""

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
    async def post(self) -> None:
        if not self.is_instructor:
            raise web.HTTPError(403, "Only instructors stop jobs here; interrupt your cell, or use scancel.")
        try:
            if not await self.watch.in_thread(self.watch.stop, self.get_body_argument("job"), self.user):
                raise web.HTTPError(404, "No job of the course with a GPU has this number; it may have ended.")
        except SchedulerFailed as problem:
            raise web.HTTPError(502, f"That was refused: {problem}") from None
        self.redirect(os.environ[PREFIX])


async def keep_looking(watch: Watch) -> None:
    """Look until the service ends."""
    while True:
        try:
            await watch.in_thread(watch.look)
        except Exception:  # the limits must hold after a look that failed for any other reason, too
            logging.getLogger("gpus").exception("a look at the jobs has failed")
            watch.problem = "the last look at the jobs has failed; the hub's log has the reason"
        await asyncio.sleep(LOOK_SECONDS)


def application(classroom: configured.Classroom, watch: Watch) -> web.Application:
    """Return the service's web application behind the hub's proxy."""
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


def open_to_pods(classroom: configured.Classroom, watch: Watch, api: Api, runs: Runs, pods: GpuPods) -> None:
    """Answer cells in pods at a port of their own, so that they need not reach the hub's proxy."""
    # its packages are those of servers on Kubernetes
    from autograder.classroom.gpus.kubernetes.front import MOST_RUNS, Front

    given, template = {"classroom": classroom}, read_template(pods.pod_template or None)
    handlers = [("/mine", Mine, given), ("/kubernetes/(.*)", Front, given)]
    behind: dict[str, Any] = {"watch": watch, "cluster": Cluster(api), "runs": runs, "turns": Turns(2 * MOST_RUNS)}
    for_cells = web.Application(handlers, **behind, pods=pods, template=template)
    for_cells.listen(port_of(pods.hub_address), max_body_size=2 * SECRET_LIMIT_BYTES)


async def serve() -> None:
    """Answer and look until the hub ends."""
    classroom = configured.from_environment()
    site, address = classroom.site, urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    assert site.gpus is not None, "the hub starts this service only then"
    ledger = Ledger(classroom.folders.gpu_ledger)
    scheduler: Scheduler = slurm_jobs
    if pods := site.gpus.kubernetes:
        api, runs = Api(as_service(), pods.namespace), Runs(classroom.folders.gpu_ledger)
        scheduler = PodJobs(api, runs)
    watch = Watch(scheduler, ledger, site.gpus, classroom.learners, site.course.instructors)
    if pods:
        open_to_pods(classroom, watch, api, runs, pods)
    application(classroom, watch).listen(int(address.port or 80), str(address.hostname), xheaders=True)
    await keep_looking(watch)


def main() -> None:
    """Run the service."""
    logging.basicConfig(level=logging.WARNING, format="[%(levelname).1s %(asctime)s gpus] %(message)s")
    asyncio.run(serve())


if __name__ == "__main__":
    main()
