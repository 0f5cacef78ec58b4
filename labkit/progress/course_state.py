"""State of a learner's course on a hub: what is released, due and handed in, and the marks that have come back.

The learner's server asks the hub with its own token, so that the answer is about its learner.
"""

from __future__ import annotations

import http
import os
from typing import Any

from labkit.progress.home import CLASSROOM_PAGE

_LIMIT_SECONDS = 10.0
"""Time after which a hub that does not answer counts as no hub."""


class HubCourse:
    """The course as the hub knows it."""

    def __init__(self) -> None:
        self._etag = ""
        self._state: dict[str, Any] | None = None

    async def state(self) -> dict[str, Any] | None:
        """Ask the hub. None where no course is on a hub, and if the hub does not answer soon.

        `autograder/classroom/pages/own_course.py` describes the answer.
        """
        if not os.environ.get(CLASSROOM_PAGE):
            return None
        from aiohttp import ClientError, ClientTimeout  # both are installed where there is a hub
        from jupyterhub.httpclient import fetch

        address, token = os.environ.get("JUPYTERHUB_API_URL", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")
        headers = {"Authorization": f"token {token}", "If-None-Match": self._etag}  # the hub's log has only changes
        try:
            async with await fetch(
                f"{address}/course", headers=headers, timeout=ClientTimeout(total=_LIMIT_SECONDS)
            ) as answer:
                if answer.status != http.HTTPStatus.NOT_MODIFIED:
                    body = await answer.json(content_type=None)
                    self._etag, self._state = answer.headers.get("Etag", ""), body if isinstance(body, dict) else None
        except (ClientError, OSError, ValueError):  # a time-out is an OSError, text that is not JSON a ValueError
            return None
        return self._state
