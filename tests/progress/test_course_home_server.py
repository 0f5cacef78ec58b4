"""What Jupyter's server answers for the course home: the state that a hub sends, and the last place."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from clocks import ManualClock
from jupyterhub.httpclient import JupyterHubHTTPClient
from waiting import BROKEN_SECONDS, wait_until

from labkit.catalogue import find
from labkit.jupyterlab import config_path
from labkit.progress import course_progress, course_state, record_check, record_place
from labkit.progress.course_state import HubCourse
from labkit.progress.home import CLASSROOM_PAGE, home_path, write_home

TRAINER = "phase1_data_parallel/04_trainer.ipynb"
STATE = {"course": "small-course", "assignments": []}


@contextmanager
def hub(answer: bytes | None, status: int = 200) -> Iterator[list[str]]:
    """A hub that answers every question in this way, or never; yields the questions."""
    asked: list[str] = []
    ending = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answer is None:
                asked.append(self.path)
                ending.wait()
                return
            known = 304 if self.headers["If-None-Match"] == '"one"' else status
            asked.append(f"{self.path} {self.headers['Authorization']} {known}")
            self.send_response(known)
            self.send_header("Etag", '"one"')
            self.end_headers()
            if known != 304:
                self.wfile.write(answer)

        def log_message(self, *parts: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=server.serve_forever).start()
        patch.setenv(CLASSROOM_PAGE, "/services/classroom/")
        patch.setenv("JUPYTERHUB_API_URL", f"http://127.0.0.1:{server.server_port}/hub/api")
        patch.setenv("JUPYTERHUB_API_TOKEN", "secret")
        try:
            yield asked
        finally:
            ending.set()
            server.shutdown()


def answers(times: int) -> list[dict[str, Any] | None]:
    async def ask() -> list[dict[str, Any] | None]:
        course = HubCourse()
        try:
            return [await course.state() for _ in range(times)]
        finally:
            await JupyterHubHTTPClient.loop_instance().close()

    return asyncio.run(ask())


async def answer_of_a_silent_hub(asked: list[str]) -> dict[str, Any] | None:
    """The answer when the limit is over, which is by the event loop's clock, after the question has arrived."""
    clock = ManualClock()
    asyncio.get_running_loop().time = clock  # type: ignore[method-assign]
    answer = asyncio.create_task(HubCourse().state())
    await asyncio.to_thread(wait_until, lambda: asked)
    clock.advance(course_state._LIMIT_SECONDS + 1)
    try:
        return await answer
    finally:
        await JupyterHubHTTPClient.loop_instance().close()


def test_the_hub_is_asked_with_the_server_s_own_token_and_need_not_repeat_an_answer() -> None:
    with hub(json.dumps(STATE).encode()) as asked:
        assert answers(3) == [STATE] * 3
    assert asked == ["/hub/api/course token secret 200", *["/hub/api/course token secret 304"] * 2]


def test_a_hub_that_refuses_or_is_slow_or_gone_or_has_no_course_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, status in ((json.dumps(STATE), 403), ("", 200), ("<html>", 200), ("[]", 200)):
        with hub(answer.encode(), status) as asked:
            assert answers(1) == [None] and asked, answer
    with hub(json.dumps(STATE).encode()) as asked, pytest.MonkeyPatch.context() as patch:
        patch.delenv(CLASSROOM_PAGE)
        assert answers(1) == [None] and asked == []
    with hub(None) as asked:
        assert asyncio.run(answer_of_a_silent_hub(asked)) is None
    monkeypatch.setenv(CLASSROOM_PAGE, "/services/classroom/")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        monkeypatch.setenv("JUPYTERHUB_API_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/hub/api")
        assert answers(1) == [None]
    monkeypatch.delenv("JUPYTERHUB_API_URL")
    assert answers(1) == [None]


@contextmanager
def jupyter_server(root: Path, workspace: Path, runtime: Path) -> Iterator[requests.Session]:
    """A server on the files in `root`, with the lab's settings for learners."""
    log = runtime / "server.log"
    places = {"LABKIT_WORKSPACE": workspace, "JUPYTER_CONFIG_PATH": config_path("learning", root)}
    places |= {"JUPYTER_CONFIG_DIR": runtime / "config", "JUPYTER_RUNTIME_DIR": runtime}
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--ServerApp.root_dir={root}"]
    command += ["--port=0", "--IdentityProvider.token=secret"]
    runtime.mkdir()
    with log.open("w") as output:
        environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
        server = subprocess.Popen(command, env=environment, cwd=root, stdout=output, stderr=output)

    def url() -> str:
        """Its address, once it answers there."""
        assert server.poll() is None, log.read_text()
        for file in runtime.glob("jpserver-*.json"):
            with suppress(requests.ConnectionError, json.JSONDecodeError):  # it does not listen yet, or writes the file
                found: str = json.loads(file.read_text())["url"].rstrip("/")
                requests.get(f"{found}/api", timeout=BROKEN_SECONDS).raise_for_status()
                return found
        return ""

    try:
        with Session(wait_until(url, log.read_text)) as session:
            yield session
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)


class Session(requests.Session):
    """Requests to one server."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.trust_env = url, False
        self.headers["Authorization"] = "token secret"

    def request(self, method: str | bytes, url: str | bytes, *arguments: Any, **options: Any) -> requests.Response:
        return super().request(method, f"{self.url}{url!s}", *arguments, **{"timeout": BROKEN_SECONDS, **options})


def test_the_last_place_is_where_another_server_on_the_same_files_continues(tmp_path: Path) -> None:
    """The servers see the files below different folders, as a sandbox and a cluster's node do."""
    home = tmp_path / "workspace"
    notebook, notes = home / TRAINER, home / "notes.ipynb"
    notebook.parent.mkdir(parents=True)
    for file in (notebook, notes):
        file.write_text("{}")
    with jupyter_server(tmp_path, home, tmp_path / "first") as first:
        there = {"path": f"workspace/{TRAINER}", "cell": "c7", "heading": "3 The *loop* --> here"}
        assert first.put("/labkit/place", json=there).status_code == 204
        for elsewhere in ("workspace/notes.ipynb", f"../{tmp_path.name}/nothing.ipynb", "", 300 * "x"):
            assert first.put("/labkit/place", json={**there, "path": elsewhere}).status_code == 204, elsewhere
        for impossible in ("\0", f"workspace/{TRAINER}\0", "\ud800"):
            assert first.put("/labkit/place", json={**there, "path": impossible}).status_code == 400, impossible
        for wrong in ({"path": 1, "cell": "c", "heading": ""}, {"path": "x"}, [], [1], None):
            assert first.put("/labkit/place", json=wrong).status_code == 400, wrong
        refused = requests.put(f"{first.url}/labkit/place", json=there, timeout=BROKEN_SECONDS)
        assert refused.status_code == 403, "no token"
        assert first.get("/labkit/course").json() == {"notebooks": [TRAINER], "course": None}
    with hub(json.dumps(STATE).encode()), jupyter_server(home, home, tmp_path / "second") as second:
        shown = second.get(f"/api/contents/{home_path().name}?type=file&format=text").json()["content"]
        assert "**Continue here: [04 · A data-parallel trainer](phase1_data_parallel/04_trainer.ipynb)**" in shown
        assert '"cell": "c7", "heading": "3 The *loop* --\\u003e here"' in shown
        assert second.get("/labkit/course").json() == {"notebooks": [TRAINER], "course": STATE}
        refused = requests.get(f"{second.url}/labkit/course", timeout=BROKEN_SECONDS, allow_redirects=False)
        assert refused.status_code == 403


def test_one_continues_at_the_last_place_until_the_exercise_is_complete(workspace: Path) -> None:
    record_check("data_loader", 10, 24)
    record_place(find("mixed_precision"), "c1", "")
    following = course_progress().next
    assert following is not None and following.exercise.short_name == "mixed_precision"
    assert following.state == "not begun", "it was only looked at"
    record_check("mixed_precision", 25, 25)
    record_check("data_loader", 12, 24)
    record_place(find("mixed_precision"), "c2", "")
    following = course_progress().next
    assert following is not None and following.exercise.short_name == "data_loader", "a look back changes nothing"
    for broken in ("{", "[]", '{"notebook": 1}', '{"notebook": 1, "cell": 2, "heading": 3, "at": 4}'):
        (workspace / ".progress/place.json").write_text(broken)
        assert course_progress().next == following


def test_on_a_hub_no_link_leads_to_a_notebook_that_is_not_fetched(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLASSROOM_PAGE, "/services/classroom/")
    text = write_home().read_text()
    assert "**Continue here: 01 · Process groups**, 40 minutes. *Nbgrader → Assignment List* fetches" in text
    assert ".ipynb)" not in text and text.count('"missing": true') == len(course_progress().exercises)
    notebook = workspace / "phase1_data_parallel/01_process_group.ipynb"
    notebook.parent.mkdir()
    notebook.touch()
    text = write_home().read_text()
    assert (
        "**Continue here: [01 · Process groups](phase1_data_parallel/01_process_group.ipynb)**, 40 minutes.\n" in text
    )
    assert text.count(".ipynb)") == 2, "here, and in the map"
