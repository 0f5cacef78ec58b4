"""Handlers of Jupyter's server for the course home: `GET labkit/course`, the learner's course as the hub knows it, and
`PUT labkit/place`, the place where the learner works.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from labkit.catalogue import all_exercises, workspace
from labkit.progress.course_state import HubCourse
from labkit.progress.recording import record_place


class CourseHandler(APIHandler):
    """The course as it is now."""

    def initialize(self, hub: HubCourse) -> None:
        """hub: queried at each request."""
        self.hub = hub

    @web.authenticated
    async def get(self) -> None:
        """Answer with the `notebooks` of exercises that the learner has, and `course`, null if no hub answers."""
        course = await self.hub.state()
        own = [
            exercise.notebook_name for exercise in all_exercises() if (workspace() / exercise.notebook_name).is_file()
        ]
        self.finish(json.dumps({"notebooks": own, "course": course}))


class PlaceHandler(APIHandler):
    """The last place."""

    @web.authenticated
    async def put(self) -> None:
        """Record `path`, as JupyterLab knows the notebook, `cell` and `heading`; other notebooks are not recorded."""
        given = self.get_json_body()
        texts = [given.get(name) for name in ("path", "cell", "heading")] if isinstance(given, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise web.HTTPError(400, "path, cell and heading are texts")
        path, cell, heading = map(str, texts)
        try:
            opened = (Path(self.settings["server_root_dir"]).expanduser() / path).resolve()
        except ValueError:
            raise web.HTTPError(400, "no file can have this path") from None
        for exercise in all_exercises():
            if opened == (workspace() / exercise.notebook_name).resolve() and opened.is_file():
                await asyncio.to_thread(record_place, exercise, cell, heading)
        self.set_status(204)
        self.finish()


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    base = server.web_app.settings["base_url"]
    course, place = (url_path_join(base, f"labkit/{name}") for name in ("course", "place"))
    server.web_app.add_handlers(".*$", [(course, CourseHandler, {"hub": HubCourse()}), (place, PlaceHandler)])
