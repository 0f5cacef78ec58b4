"""`GET /hub/api/course`: a learner's server asks the hub about its course, and the hub asks the course's page.

Servers of every kind reach the hub's API, those in sandboxes by a socket, and not all of them the proxy in front of the
page. The page knows the learner by the server's token alone: nothing else of the request is passed on.
"""

from __future__ import annotations

from typing import Any

from aiohttp import ClientError, ClientTimeout
from jupyterhub.apihandlers import APIHandler, default_handlers
from jupyterhub.httpclient import fetch
from tornado import web

from autograder.classroom.configured import Classroom
from autograder.classroom.site import PAGE_SERVICE

_LIMIT_SECONDS = 5.0


class CourseHandler(APIHandler):  # type: ignore[misc]  # JupyterHub has no types
    """Passes a question on to the course's page."""

    def initialize(self, page: str) -> None:
        """page: address of the course's page for the hub."""
        self.page = page

    async def get(self) -> None:
        if self.current_user is None:  # a program asks: the login page would be no answer
            raise web.HTTPError(403)
        headers = {"Authorization": f"token {self.get_auth_token() or ''}"}
        try:
            async with await fetch(
                self.page, headers=headers, raise_for_status=False, timeout=ClientTimeout(total=_LIMIT_SECONDS)
            ) as answer:
                self.set_status(answer.status)
                self.finish(await answer.read())
        except (ClientError, OSError):
            raise web.HTTPError(503, "the course's page does not answer") from None


def configure(c: Any, classroom: Classroom) -> None:
    """Let servers ask the course's page with their own tokens."""
    page = f"{classroom.page_url}/services/{PAGE_SERVICE}/mine"
    default_handlers.append((r"/api/course", CourseHandler, {"page": page}))  # JupyterHub.extra_handlers is deprecated
    # the first two are JupyterHub's own
    access = f"access:services!service={PAGE_SERVICE}"
    c.Spawner.server_token_scopes = ["users:activity!user", "access:servers!server", access]
