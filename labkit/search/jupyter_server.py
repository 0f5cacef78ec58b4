"""Handler of Jupyter's server for `GET labkit/search?q=WORDS`: hits for the search box, folders of the notebooks."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from labkit.catalogue import guides, workspace
from labkit.search.index import Hit, search


class SearchHandler(APIHandler):
    """The hits that JupyterLab can open: files below the folder that the server serves."""

    @web.authenticated
    async def get(self) -> None:
        """Answer with `hits`, and with folders, null where not served: the `guides`, the learner's `own` notebooks, and
        the `solved` ones, to which guides link; beside a link to the guides that folder need not exist.
        """
        served = Path(self.settings["server_root_dir"]).expanduser().resolve()
        hits = await asyncio.to_thread(search, self.get_query_argument("q", ""))  # reads the notebooks first
        shown = [_shown(hit, path) for hit in hits if (path := _within(served, hit.passage.path)) is not None]
        places = {"guides": guides(), "own": workspace(), "solved": guides().parent / "notebooks"}
        folders = {name: _within(served, place) for name, place in places.items()}
        self.finish(json.dumps({"hits": shown, **folders}))


def _within(served: Path, path: Path) -> str | None:
    """The path as JupyterLab knows it, "" for the folder that the server serves; None if it is not in that folder."""
    # not resolved: the folder itself may be reached through a link
    absolute = Path(os.path.abspath(path))
    for candidate in (absolute, absolute.resolve()):
        if candidate.is_relative_to(served):
            return "" if candidate == served else candidate.relative_to(served).as_posix()
    return None


def _shown(hit: Hit, path: str) -> dict[str, Any]:
    passage = hit.passage
    return {
        "path": path,
        "place": passage.place,
        "title": passage.title,
        "section": passage.section,
        "excerpt": hit.parts,
    }


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    address = url_path_join(server.web_app.settings["base_url"], "labkit/search")
    server.web_app.add_handlers(".*$", [(address, SearchHandler)])
