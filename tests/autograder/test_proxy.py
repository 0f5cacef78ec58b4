"""The classroom's proxy in front of a server at a unix socket."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from subprocess import Popen

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler
from waiting import BROKEN_SECONDS, wait_until

from autograder.classroom import proxy
from autograder.classroom.spawner import socket_url


class Echo(RequestHandler):
    """Answers with the address of its connection's stream, and with the header."""

    def post(self) -> None:
        self.write({"connection": id(self.request.connection.stream), "header": self.request.headers["Connection"]})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A server of tornado, as a hub's and a learner's are, at a unix socket."""
    path = tmp_path / "server.sock"
    loop = asyncio.new_event_loop()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        HTTPServer(Application([(".*", Echo)])).add_socket(bind_unix_socket(str(path)))
        loop.call_soon(ready.set)
        loop.run_forever()

    ready = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(BROKEN_SECONDS)
    yield path
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_a_connection_to_a_unix_socket_stays_open(server: Path, tmp_path: Path) -> None:
    """A server that closes it as soon as it has answered makes the proxy lose answers and send 503."""
    proxy.install()
    path = tmp_path / "proxy.sock"
    sockets = ["--socket", str(path), "--api-socket", str(tmp_path / "api.sock")]
    environment = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": "secret"}
    running = Popen([*proxy.command(), *sockets, "--default-target", socket_url(server)], env=environment)
    try:
        asked = [{}, {"Connection": "close"}] * 10
        answers = [ask(path, headers) for headers in asked]
    finally:
        running.terminate()
        running.wait()
    assert {answer["header"] for answer in answers} == {"keep-alive"}
    assert len({answer["connection"] for answer in answers}) == 1


def ask(path: Path, headers: dict[str, str]) -> dict[str, object]:
    """Return the answer to a POST by way of the proxy, on a connection of its own."""
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    unconnected = connection.sock
    wait_until(lambda: unconnected.connect_ex(str(path)) == 0)  # the proxy is starting
    with closing(connection):
        connection.request("POST", "/", "x" * 999, headers)
        return json.loads(connection.getresponse().read())
