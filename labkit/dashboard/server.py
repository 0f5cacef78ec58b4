"""`labkit dashboard LOGDIR`: one page for the browser of the user who started it, whose data come from the log."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from labkit import page_server
from labkit.dashboard.view import REFRESH_SECONDS, DashboardView
from labkit.page_server import Page, PageServer, Token

STATIC = Path(__file__).parent / "static"
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}


class DashboardServer(PageServer):
    """Serves the page of a folder on this machine, to whoever has the token. port and hosts: see `PageServer`."""

    def __init__(self, folder: Path, port: int = 0, hosts: Collection[str] = ()) -> None:
        self.token = Token()
        self._view = DashboardView(folder)
        self._reading = threading.Lock()
        """Lock for reading: two pages may ask at the same time."""
        super().__init__(self._find, self.token, port, hosts=hosts)

    @property
    def address(self) -> str:
        """Address of the page, with the token."""
        return page_server.address(self, self.token)

    def _find(self, path: str) -> Page | None:
        if path == "/data":
            with self._reading:
                data = self._view.refresh(REFRESH_SECONDS)
            return Page(json.dumps(data, allow_nan=False).encode(), "application/json")
        if path not in _FILES:
            return None
        name, kind = _FILES[path]
        return Page((STATIC / name).read_bytes(), kind)


def serve(folder: Path, port: int, browser: bool, hosts: Collection[str] = ()) -> int:
    """Serve until Ctrl+C; return the exit status."""
    with DashboardServer(folder, port, hosts) as server:
        print(f"dashboard of {folder}: {server.address} (Ctrl+C ends it)", flush=True)
        if (behind_hub := page_server.hub_address(server, server.token)) is not None:
            print(f"where the hub has jupyter-server-proxy: {behind_hub}", flush=True)
        with page_server.opened_in_browser(server.address) if browser else nullcontext():
            server.serve_forever()
    return 0
