"""`labkit dashboard LOGDIR`: one page for a browser, whose data come from the log."""

from __future__ import annotations

import json
import threading
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from labkit.dashboard.view import REFRESH_SECONDS, DashboardView

STATIC = Path(__file__).parent / "static"
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
}


class DashboardServer(ThreadingHTTPServer):
    """Serves the page on this machine alone, under http://127.0.0.1:PORT/. port: 0 chooses a free one."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.view = DashboardView(folder)
        self.reading = threading.Lock()
        """Lock for reading: two pages may ask at the same time."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/data":
            with self.server.reading:
                data = self.server.view.refresh(REFRESH_SECONDS)
            self._answer(json.dumps(data, allow_nan=False).encode(), "application/json")
        elif path in _FILES:
            name, kind = _FILES[path]
            self._answer((STATIC / name).read_bytes(), kind)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line for each second is too much."""


def serve(folder: Path, port: int, browser: bool) -> int:
    """Serve until Ctrl+C; return the exit status."""
    with DashboardServer(folder, port) as server:
        print(f"dashboard of {folder}: {server.address} (Ctrl+C ends it)", flush=True)
        if browser:
            webbrowser.open(server.address)
        server.serve_forever()
    return 0
