"""Pages of the lab are for one person: whoever has the token, or programs of the same user."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from unix_users import as_user, unix_users
from waiting import BROKEN_SECONDS

from labkit import page_server
from labkit.course.phase4_production.monitoring.given import PrometheusSink
from labkit.dashboard.server import DashboardServer, serve
from labkit.page_server import HEADERS, PageServer


@contextmanager
def serving(server: PageServer) -> Iterator[PageServer]:
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[DashboardServer]:
    with serving(server := DashboardServer(tmp_path)):
        yield server


def ask(server: PageServer, path: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Ask on this machine. headers: in place of a browser's."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=BROKEN_SECONDS)
    connection.putrequest("GET", path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **(headers or {})}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def test_without_the_token_nothing_of_the_folder_is_shown(dashboard: DashboardServer, tmp_path: Path) -> None:
    for path in ("/", "/data", "/page.js", "/?token=", "/?token=wrong", "/nowhere"):
        answer = ask(dashboard, path)
        assert answer.status == 403, path
        assert tmp_path.name.encode() not in answer.body  # type: ignore[attr-defined]
    wrong = {"Cookie": f"labkit-{dashboard.server_port}=wrong", "Authorization": "token wrong"}
    assert ask(dashboard, "/data", wrong).status == 403
    assert ask(dashboard, "/data", {"Cookie": "=;;\x01"}).status == 403


def test_the_printed_address_becomes_a_cookie_that_scripts_cannot_read(dashboard: DashboardServer) -> None:
    printed = urlsplit(dashboard.address)
    assert len(dashboard.token.token) >= 32
    answer = ask(dashboard, f"{printed.path}?{printed.query}")
    assert (answer.status, answer.headers["Location"]) == (302, "./")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path=/;" in cookie
    kept = {"Cookie": cookie.partition(";")[0]}
    assert b"<title>Training dashboard</title>" in ask(dashboard, "/", kept).body  # type: ignore[attr-defined]
    assert ask(dashboard, "/data", kept).status == 200
    assert ask(dashboard, "/data", {"Authorization": f"token {dashboard.token.token}"}).status == 200
    assert ask(dashboard, "/../view.py", kept).status == 404


def test_two_servers_have_two_tokens(tmp_path: Path) -> None:
    with DashboardServer(tmp_path) as one, DashboardServer(tmp_path) as other:
        assert one.token.token != other.token.token


def test_another_host_or_origin_gets_nothing_even_with_the_token(dashboard: DashboardServer) -> None:
    token, port = {"Authorization": f"token {dashboard.token.token}"}, dashboard.server_port
    for host in (
        "attacker.example",
        f"attacker.example:{port}",
        "127.0.0.1.attacker.example",
        "",
        "[",
        "evil@attacker.example",
    ):
        assert ask(dashboard, "/data", {**token, "Host": host}).status == 403, host
    for origin in ("https://attacker.example", "null", f"http://127.0.0.1:{port + 1}"):
        assert ask(dashboard, "/data", {**token, "Origin": origin}).status == 403, origin
    for host in (f"localhost:{port}", f"[::1]:{port}", f"127.0.0.1:{port}"):
        assert ask(dashboard, "/data", {**token, "Host": host, "Origin": f"http://{host}"}).status == 200, host


def test_every_answer_has_the_headers(dashboard: DashboardServer) -> None:
    token = {"Authorization": f"token {dashboard.token.token}"}
    for answer in (ask(dashboard, "/"), ask(dashboard, "/", token), ask(dashboard, "/nowhere", token)):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "Python" not in answer.headers["Server"]


def test_the_page_has_no_script_or_style_of_its_own(dashboard: DashboardServer) -> None:
    answer = ask(dashboard, "/", {"Authorization": f"token {dashboard.token.token}"})
    page = answer.body.decode()  # type: ignore[attr-defined]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page)


def test_behind_a_hub_the_cookie_is_for_this_persons_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jupyter-server-proxy passes `Host` on as the browser sent it, and says under which path it serves the page."""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_URL", "https://hub.example:8443/user/ada/")
    with serving(server := DashboardServer(tmp_path)):
        assert isinstance(server, DashboardServer)
        prefix = f"/user/ada/proxy/{server.server_port}"
        elsewhere = page_server.hub_address(server, server.token)
        assert elsewhere == f"https://hub.example:8443{prefix}/?token={server.token.token}"
        browser = {"Host": "hub.example:8443", "X-Forwarded-Context": prefix, "X-Forwarded-Proto": "https,http"}
        answer = ask(server, f"/?token={server.token.token}", browser)
        assert answer.status == 302
        assert f"Path={prefix};" in answer.headers["Set-Cookie"] and answer.headers["Set-Cookie"].endswith("Secure")
        kept = {**browser, "Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
        assert ask(server, "/data", {**kept, "Origin": "https://hub.example:8443"}).status == 200
        assert ask(server, "/data", {**kept, "Origin": "https://hub.example"}).status == 403
        assert ask(server, "/data", {**kept, "Host": "attacker.example"}).status == 403
        split = ask(server, f"/?token={server.token.token}", {**browser, "X-Forwarded-Context": "/; Domain=example"})
        assert "Path=/;" in split.headers["Set-Cookie"] and "Domain" not in split.headers["Set-Cookie"]


def test_behind_a_hub_of_unknown_name_the_token_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    for name in ("JUPYTERHUB_PUBLIC_URL", "JUPYTERHUB_HOST"):
        monkeypatch.delenv(name, raising=False)
    with serving(server := DashboardServer(tmp_path)):
        assert isinstance(server, DashboardServer)
        assert ask(server, "/data", {"Host": "hub.example"}).status == 403
        token = {"Authorization": f"token {server.token.token}"}
        assert ask(server, "/data", {"Host": "hub.example", **token}).status == 200


def test_a_name_that_was_asked_for_is_answered_to(tmp_path: Path) -> None:
    with serving(server := DashboardServer(tmp_path, hosts=["Lab.example"])):
        assert isinstance(server, DashboardServer)
        token = {"Authorization": f"token {server.token.token}"}
        assert ask(server, "/data", {"Host": "lab.example:80", **token}).status == 200
        assert ask(server, "/data", {"Host": "other.example", **token}).status == 403


def test_no_program_is_given_the_token_as_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine sees programs' arguments."""
    seen = []

    def open_browser(url: str) -> bool:
        file = Path(urlsplit(url).path)
        seen.append((url, file, file.read_text(), file.stat().st_mode & 0o777))
        return True

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", open_browser)
    monkeypatch.setattr(DashboardServer, "serve_forever", lambda self: None)
    serve(tmp_path, 0, browser=True)
    ((url, file, text, mode),) = seen
    assert url.startswith("file:///") and "token" not in url
    assert "/?token=" in text and mode == 0o600 and not file.exists()


def test_metrics_are_for_programs_of_the_same_user() -> None:
    sink = PrometheusSink(0, port=0)
    command = [sys.executable, "-c", "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"]
    url = f"http://127.0.0.1:{sink.port}/metrics"
    try:
        assert b"training_loss" in subprocess.run([*command, url], capture_output=True, check=True).stdout
        assert sink._server is not None
        assert sink._server.server_address[0] == "127.0.0.1"
        assert ask(sink._server, "/metrics", {"Host": "attacker.example"}).status == 403
        with unix_users("eve") as users:
            # in bash: other users need not reach the lab's Python
            request = r"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"
            asked = f"exec 3<>/dev/tcp/127.0.0.1/{sink.port}; printf '{request}' >&3"
            seen = as_user(users.names[0], "bash", "-c", f"{asked}; cat <&3")
            assert " 403 " in seen.stdout and "training" not in seen.stdout
    finally:
        sink.close()


def test_metrics_are_for_all_where_they_are_asked_to_be() -> None:
    sink = PrometheusSink(0, port=0, address="0.0.0.0")
    try:
        assert sink._server is not None
        assert ask(sink._server, "/metrics", {"Host": "node-7:9400"}).status == 200
    finally:
        sink.close()
