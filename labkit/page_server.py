"""A server of pages for one person: what a browser or a program on this machine may read, and nobody else.

Every page that the lab serves itself is served by `PageServer`. It listens on this machine's loopback, which all users
of the machine reach, so each request must show who sends it:

- `Token`: the address that is printed holds a random token, as Jupyter's does; the browser then keeps it in a cookie.
- `SameUser`: the kernel tells which user the peer's connection belongs to. For programs that know no token.
- `Anyone`: for a server that was asked to listen on other interfaces.

A page elsewhere cannot make a browser ask: `Host` and `Origin` are checked. A page may not be shown in another one's
frame, and loads nothing from elsewhere.
"""

from __future__ import annotations

import os
import re
import secrets
import webbrowser
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hmac import compare_digest
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from labkit.linux import sockets
from labkit.private_folders import NotPrivate, private_folder

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""
_SILENT_SECONDS = 30.0
"""Time after which a connection without a request is closed."""
_LOOPBACK_NAMES = (LOOPBACK, "localhost", "::1")
_PATH = re.compile(r"/[\w.~%@+/-]*")


@dataclass(frozen=True)
class Page:
    """The body of an answer, and its content type."""

    body: bytes
    kind: str
    headers: Mapping[str, str] | None = None


class Refused(Exception):
    """A request is refused, with this status; the message is for the reader."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Access(Protocol):
    """Who may read."""

    any_host: bool
    """Whether `Host` may be any: what is open to all is not protected by the name that it is called by."""

    def check(self, request: BaseHTTPRequestHandler, query: Mapping[str, list[str]]) -> Mapping[str, str]:
        """Return headers to redirect with, to the page without its query; empty to answer. Raises `Refused`."""


class Token:
    """Whoever shows the token: in the query, in the cookie that a query is answered with, or in a header."""

    any_host = False

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)

    def check(self, request: BaseHTTPRequestHandler, query: Mapping[str, list[str]]) -> Mapping[str, str]:
        if self._is_token(query.get("token", [""])[0]):
            return {"Set-Cookie": self._cookie(request)}
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() in ("token", "bearer") and self._is_token(shown.strip()):
            return {}
        try:
            cookies = SimpleCookie(request.headers.get("Cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        cookie = cookies.get(self._cookie_name(request))
        if cookie is not None and self._is_token(cookie.value):
            return {}
        raise Refused(HTTPStatus.FORBIDDEN, "Open the address that this server has printed: it has a token.")

    def _is_token(self, shown: str) -> bool:
        return compare_digest(shown.encode(), self.token.encode())

    def _cookie_name(self, request: BaseHTTPRequestHandler) -> str:
        # browsers send the cookies of a host to all of its ports
        return f"labkit-{request.connection.getsockname()[1]}"

    def _cookie(self, request: BaseHTTPRequestHandler) -> str:
        # a hub serves all users' pages under one name: the cookie is for what is below the proxy's path for this one
        prefix = request.headers.get("X-Forwarded-Context") or request.headers.get("X-Forwarded-Prefix") or ""
        path = prefix if _PATH.fullmatch(prefix) else "/"
        secure = "; Secure" if request.headers.get("X-Forwarded-Proto", "").split(",")[0].strip() == "https" else ""
        return f"{self._cookie_name(request)}={self.token}; Path={path}; HttpOnly; SameSite=Lax{secure}"


class SameUser:
    """Programs of this user, and root's, on this machine."""

    any_host = False

    def check(self, request: BaseHTTPRequestHandler, query: Mapping[str, list[str]]) -> Mapping[str, str]:
        if sockets.peer_user(request.connection) not in (0, os.geteuid()):
            raise Refused(HTTPStatus.FORBIDDEN, "This address is for programs of the user who opened it.")
        return {}


class Anyone:
    """Anyone who reaches the address."""

    any_host = True

    def check(self, request: BaseHTTPRequestHandler, query: Mapping[str, list[str]]) -> Mapping[str, str]:
        return {}


class PageServer(ThreadingHTTPServer):
    """Answers GET requests with the pages that `find(path)` returns, None for a path that has none. port 0: a free one.

    hosts: names, besides this machine's own, by which browsers reach it through a proxy. On a JupyterHub whose public
    name is not known any name will do; only the token counts there.
    Raises OSError if the port is taken.
    """

    daemon_threads = True

    def __init__(
        self,
        find: Callable[[str], Page | None],
        access: Access,
        port: int = 0,
        address: str = LOOPBACK,
        hosts: Collection[str] = (),
    ) -> None:
        self.find, self.access = find, access
        names = _names_behind_hub()
        self._any_host = access.any_host or names is None
        self._names = frozenset(name.lower() for name in (*_LOOPBACK_NAMES, *hosts, *(names or ())))
        super().__init__((address, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client that goes away is no fault of this server."""

    def check_names(self, host: str, origin: str | None) -> None:
        """Raise `Refused` for a request by another name, or on behalf of another page."""
        if not self._any_host and _name(host) not in self._names:
            raise Refused(HTTPStatus.FORBIDDEN, "This server does not answer under that name.")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Refused(HTTPStatus.FORBIDDEN, "This server does not answer other pages.")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "labkit", ""
    timeout = _SILENT_SECONDS

    def do_GET(self) -> None:
        try:
            self.server.check_names(self.headers.get("Host", ""), self.headers.get("Origin"))
            path, _, query = self.path.partition("?")
            redirect = self.server.access.check(self, parse_qs(query))
        except Refused as refused:
            self._answer(refused.status, Page(f"{refused}\n".encode(), "text/plain; charset=utf-8"))
            return
        if redirect:
            # the token must not stay in the browser's address and history
            here = f"./{path.rpartition('/')[2]}"
            self._answer(HTTPStatus.FOUND, Page(b"", "text/plain", {**redirect, "Location": here}))
            return
        page = self.server.find(path)
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, Page(b"There is no such page.\n", "text/plain; charset=utf-8"))
        else:
            self._answer(HTTPStatus.OK, page)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request for a page as `Refused` is: in plain words, with the headers of every answer."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "This server answers GET alone."
        self.request_version = "HTTP/1.0"  # what cannot be read counts as 0.9, whose answers have no status
        self.close_connection = True
        status = HTTPStatus(code)
        self._answer(status, Page(f"{message or status.phrase}\n".encode(), "text/plain; charset=utf-8"))

    def _answer(self, status: HTTPStatus, page: Page) -> None:
        self.send_response(status)
        headers = {"Content-Type": page.kind, "Content-Length": str(len(page.body)), **(page.headers or {})}
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: an address may hold the token, and a line for each second is too much."""


def address(server: PageServer, token: Token) -> str:
    """Return the address for a browser on this machine."""
    return f"http://{LOOPBACK}:{server.server_port}/?token={token.token}"


def hub_address(server: PageServer, token: Token) -> str | None:
    """Return the address for a browser elsewhere, by jupyter-server-proxy; None outside of a hub.

    Without the hub's name, where that is not known.
    """
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if prefix is None:
        return None
    return f"{_hub_url() or ''}{prefix.rstrip('/')}/proxy/{server.server_port}/?token={token.token}"


@contextmanager
def opened_in_browser(url: str) -> Iterator[None]:
    """Open a browser at `url`, by a file of this user alone: every user sees the arguments of a program.

    Opens none where such a file cannot be made.
    """
    try:
        file = private_folder("pages") / f"{secrets.token_hex(8)}.html"
        with open(file, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as page:
            page.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">\n')
    except (NotPrivate, OSError):
        yield
        return
    try:
        webbrowser.open(file.as_uri())
        yield
    finally:
        file.unlink(missing_ok=True)


def _name(host: str) -> str:
    """Return the host of a `Host` header, without its port; empty if it has none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _hub_url() -> str | None:
    """Return the public address of the hub, if it is known, without a path."""
    found = urlsplit(os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_HOST") or "")
    return f"{found.scheme}://{found.netloc}" if found.netloc else None


def _names_behind_hub() -> list[str] | None:
    """Return the hub's public names; none without a hub, None if they are not known."""
    if "JUPYTERHUB_SERVICE_PREFIX" not in os.environ:
        return []
    url = _hub_url()
    return None if url is None else [_name(urlsplit(url).netloc)]
