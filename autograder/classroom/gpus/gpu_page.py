"""Base classes of the service's answers: pages for browsers, and answers for cells."""

from __future__ import annotations

import http.client
from typing import Any

from jupyterhub.services.auth import UserNotAllowed
from tornado import web

from autograder.classroom.gpus.watch import Watch
from autograder.classroom.pages.page import Page
from autograder.classroom.pages.rendering import HEADERS


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
        """Return what a user has used today, what is left, why jobs were ended, and queue places of waiting ones."""
        used, limits = self.watch.ledger.used(now).get(user, 0), self.watch.limits
        waiting = [job for job, _ in self.watch.jobs if job.waits]
        return {
            "used": used,
            "left": max(0, limits.seconds_per_day - used),
            "seconds_per_day": limits.seconds_per_day,
            "longest_minutes": limits.longest_minutes,
            "most_ranks": limits.most_ranks,
            "notices": [{"job": notice.job, "text": notice.text} for notice in self.watch.ledger.notices(user, now)],
            "places": {job.id: place for place, job in enumerate(waiting, 1) if job.user == user},
        }


class ForCells(GpuPage):
    """An answer for programs, identified by the token of their server alone; a browser's cookies are ignored."""

    async def prepare(self) -> None:
        """Identify the user. Raises `web.HTTPError` unless the user belongs to the course."""
        header = self.hub_auth.auth_header_pat.fullmatch(self.request.headers.get("Authorization", ""))
        if header is None:
            raise web.HTTPError(401, "the hub knows you by the token of your server, which is missing")
        user_model = await self.hub_auth.user_for_token(header[1], sync=False)
        if user_model is None:
            raise web.HTTPError(401, "the hub does not know the token of your server: start your server again")
        try:
            self.current_user = self.check_hub_user(user_model)
        except UserNotAllowed:
            raise web.HTTPError(403, "this token is not for GPUs: use that of your server") from None
        if self.user not in {*self.watch.learners, *self.watch.others}:
            raise web.HTTPError(403, "you are not in this course")

    def write_error(self, status_code: int, **details: Any) -> None:
        """Answer as the API of Kubernetes does."""
        problem = details.get("exc_info", (None, None))[1]
        text = problem.log_message % problem.args if isinstance(problem, web.HTTPError) and problem.log_message else ""
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status_code}
        self.finish({**status, "message": text or http.client.responses.get(status_code, "Error")})
