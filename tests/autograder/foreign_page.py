"""A page of another site, opened in the browser of somebody who is logged in: it asks, posts, frames and connects."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = b"<!doctype html><title>Win a prize</title><h1 id=prize>Win a prize</h1>"

ATTACK = """async ({posts, pages, sockets}) => {
    const found = {};
    const settle = promise => promise.then(answer => answer, problem => String(problem).split(":")[0]);
    for (const url of pages) {
        const read = fetch(url, {credentials: "include"});
        found[`read ${url}`] = await settle(read.then(async answer => await answer.text() && answer.status));
        const frame = document.createElement("iframe");
        frame.src = url;
        document.body.append(frame);
        await new Promise(done => { frame.onload = done });
        found[`frame ${url}`] = await settle((async () => frame.contentDocument.body.innerText)());
    }
    for (const [method, url, type, body] of posts) {
        const asked = {method, body, credentials: "include", headers: {"Content-Type": type}};
        found[`${method} ${url}`] = await settle(fetch(url, asked).then(answer => answer.status));
        if (method != "POST") continue;
        await settle(fetch(url, {...asked, mode: "no-cors", headers: {"Content-Type": "text/plain"}}));
        await new Promise(done => {
            const frame = document.createElement("iframe"), form = document.createElement("form");
            frame.name = form.target = `frame${document.forms.length}`;
            form.method = "post";
            form.action = url;
            form.enctype = "text/plain";
            const [name, ...value] = body.split("=");
            form.append(Object.assign(document.createElement("input"), {name, value: value.join("=")}));
            document.body.append(frame, form);
            frame.onload = done;  // of what it is sent to: an empty one is loaded when it is added
            form.submit();
        });
    }
    for (const url of sockets) {
        found[`connect ${url}`] = await new Promise(done => {
            const socket = new WebSocket(url);
            socket.onopen = () => { done("connected"); socket.close() };
            socket.onerror = () => done("refused");
        });
    }
    return found;
}"""
"""Returns the outcome of each attempt. posts: method, address, type and text of each; `POST` also as a form."""

POST_AND_FOLLOW = """([url, fields, kind]) => {
    const form = document.createElement("form");
    form.method = "post";
    form.action = url;
    form.enctype = kind;
    for (const [name, value] of Object.entries(fields)) {
        form.append(Object.assign(document.createElement("input"), {name, value}));
    }
    document.body.append(form);
    setTimeout(() => form.submit());  // after the answer of this function
}"""
"""Sends a form as if somebody had pressed a button: browsers add cookies that they keep from frames."""


@contextmanager
def foreign_site(certificate: Path | None = None) -> Iterator[str]:
    """Serve the page; yield its address. certificate: with it the page is at https, else at http on another host."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{'http://localhost' if certificate is None else 'https://127.0.0.1'}:{server.server_port}/"
        finally:
            server.shutdown()


def allowed(found: Mapping[str, object]) -> dict[str, object]:
    """Return the attempts that a browser or server did not refuse."""
    refused = ("TypeError", "SecurityError", "refused")
    return {what: outcome for what, outcome in found.items() if outcome not in refused}
