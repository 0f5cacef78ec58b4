"""JupyterLab as `labkit start` opens it: what its page offers, and what it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

from jupyter_server.base.websocket import WebSocketMixin
from jupyter_servers import printed_address
from waiting import BROKEN_SECONDS

from labkit.jupyterlab import config_path


@contextmanager
def started(log: Path, **environment: str) -> Iterator[str]:
    """The address that `labkit start` prints into `log`."""
    places = {"JUPYTER_CONFIG_DIR": log.parent / "config", "JUPYTER_RUNTIME_DIR": log.parent / "runtime"}
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "labkit", "start", "--no-browser", "--port=0"],
            env={**os.environ, **{name: str(place) for name, place in places.items()}, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        yield printed_address(server, log)
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)


def test_a_learner_without_a_course_gets_no_parts_of_nbgrader_and_no_news(tmp_path: Path, workspace: Path) -> None:
    log = tmp_path / "log"
    with started(log) as address:
        page = urlopen(address).read().decode()
        settings = urljoin(address, "/lab/api/settings/@jupyterlab/apputils-extension:notification")
        notification = json.load(urlopen(f"{settings}?{address.partition('?')[2]}"))
    found = re.search(r'<script id="jupyter-config-data" type="application/json">(.*?)</script>', page, re.DOTALL)
    disabled = json.loads(found[1])["disabledExtensions"] if found else []
    # the debugger has a port at which every user of the machine may run code in the kernel
    assert {"@jupyter/nbgrader", "@jupyterlab/debugger-extension"} <= set(disabled)
    assert notification["schema"]["properties"]["fetchNews"]["default"] == "false"
    assert not re.search(r"^\[I ", log.read_text(), re.MULTILINE)


def test_a_connection_whose_pings_are_answered_stays_open_on_a_busy_machine() -> None:
    settings: dict[str, int] = {}
    for file in Path(str(files("labkit.jupyterlab"))).glob("settings/*/jupyter_server_config.json"):
        settings |= json.loads(file.read_text()).get("ServerApp", {}).get("tornado_settings", {})
    server = WebSocketMixin()
    server.settings = settings  # type: ignore[attr-defined]  # a mixin of handlers, which have them
    # the answer to the last ping is looked for when the next one is due, which may be late
    assert server.ping_timeout >= 2 * server.ping_interval


def test_a_token_of_ones_own_is_not_shown(tmp_path: Path, workspace: Path) -> None:
    with started(tmp_path / "log", JUPYTER_TOKEN="of my own") as address:
        assert address.endswith("/lab/tree/HOME.md")
        assert urlopen(f"{address}?token=of%20my%20own").status == 200


def test_who_is_enrolled_gets_the_learners_parts_and_the_own_settings_count_more(tmp_path: Path) -> None:
    def last_two() -> list[str]:
        return [Path(place).name for place in config_path("learning", tmp_path).split(os.pathsep)[-2:]]

    assert last_two() == ["without_course", "everyone"]
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\n")
    assert last_two() == ["enrolled", "everyone"]
