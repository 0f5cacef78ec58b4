"""Jupyter's server answers `GET labkit/search?q=WORDS`: what the search box in JupyterLab shows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from labkit.search.index import Hit, search


class SearchHandler(APIHandler):
    """The hits that JupyterLab can open: files below the folder that the server serves."""

    @web.authenticated
    async def get(self) -> None:
        """Answer with `{"hits": [...]}`."""
        served = Path(self.settings["server_root_dir"]).expanduser().resolve()
        hits = await asyncio.to_thread(search, self.get_query_argument("q", ""))  # reads the notebooks first
        self.finish(json.dumps({"hits": [shown for hit in hits if (shown := _shown(hit, served)) is not None]}))


def _shown(hit: Hit, served: Path) -> dict[str, Any] | None:
    path, passage = hit.passage.path.resolve(), hit.passage
    if not path.is_relative_to(served):
        return None
    return {
        "path": path.relative_to(served).as_posix(),
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
