"""One learner of benchmarks/classroom.py, as a browser without pages: logs in, opens a notebook, runs cells."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import nbformat
from yarl import URL

_PASSWORD = "correct horse"
_POLL_SECONDS = 0.1
_LIMIT_SECONDS = 300.0
_RANKS = re.compile(r"^\[[\d, -]+\] ")
"""Label of ranks before a line; while ranks run, the page has labels apart from lines."""
_CONTROL = re.compile(r"\x1b\[[0-9;]*m")


class CellFailed(Exception):
    """A cell ended with an error, or did not end."""


@dataclass(frozen=True)
class Output:
    """Output of one cell. Seconds count from sending it."""

    text: str
    first_line_seconds: float | None
    """Seconds until its first line was on the page, whether ranks still ran or not; None if it printed nothing."""
    seconds: float


class Learner:
    """A learner as a context manager. address: that of the hub."""

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self._address = address
        self._server = f"{address}/user/{name}"

    async def __aenter__(self) -> Self:
        limits = aiohttp.ClientTimeout(total=_LIMIT_SECONDS)
        # browsers keep cookies of hosts that are IP addresses, too
        self._http = aiohttp.ClientSession(timeout=limits, cookie_jar=aiohttp.CookieJar(unsafe=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ready_notebook(self, notebook: nbformat.NotebookNode) -> float:
        """Log in, wait for the server, put the notebook into the home and open it; return the seconds.

        The notebook is ready when its kernel has answered and is idle.
        """
        began = time.perf_counter()
        await self._log_in()
        for path in ("lab/api/settings", "api/kernelspecs", "api/contents?content=1"):  # as JupyterLab's page does
            await self._get(path)
        model = {"type": "notebook", "format": "json", "content": notebook}
        await self._send("PUT", "api/contents/notebook.ipynb", model)
        await self._get("api/contents/notebook.ipynb?type=notebook&content=1")
        session = {"path": "notebook.ipynb", "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        kernel = (await self._send("POST", "api/sessions", session))["kernel"]["id"]
        channels = f"{self._server}/api/kernels/{kernel}/channels"
        self._socket = await self._http.ws_connect(f"{channels}?session_id={uuid.uuid4().hex}", max_msg_size=0)
        await self._ask("kernel_info_request", {})
        return time.perf_counter() - began

    async def run(self, source: str) -> Output:
        """Run one cell, and watch it as a page does. Raises `CellFailed`."""
        content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        output = await self._ask("execute_request", content)
        assert isinstance(output, Output)
        return output

    async def _log_in(self) -> None:
        page = await self._page(f"{self._address}/hub/login")
        token = re.search(r'name="_xsrf" value="([^"]+)"', page)
        assert token is not None, page
        form = {"username": self.name, "password": _PASSWORD, "_xsrf": token[1]}
        async with self._http.post(f"{self._address}/hub/login", data=form) as answer:
            answer.raise_for_status()
        limit = time.perf_counter() + _LIMIT_SECONDS
        while time.perf_counter() < limit:
            async with self._http.get(f"{self._server}/lab/tree/HOME.md") as answer:
                await answer.read()
                if str(answer.url).startswith(self._server):
                    answer.raise_for_status()
                    return
            await asyncio.sleep(_POLL_SECONDS)
        raise CellFailed(f"the server of {self.name} does not start")

    async def _page(self, url: str) -> str:
        async with self._http.get(url) as answer:
            answer.raise_for_status()
            return await answer.text()

    async def _get(self, path: str) -> None:
        await self._page(f"{self._server}/{path}")

    async def _send(self, method: str, path: str, body: Any) -> Any:
        cookies = self._http.cookie_jar.filter_cookies(URL(f"{self._server}/"))
        headers = {"X-XSRFToken": cookies["_xsrf"].value}
        async with self._http.request(method, f"{self._server}/{path}", json=body, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def _ask(self, kind: str, content: dict[str, Any]) -> Output:
        """Send a request to the kernel, and wait until it is idle again."""
        identity = uuid.uuid4().hex
        header = {"msg_id": identity, "msg_type": kind, "username": "", "session": identity, "version": "5.3"}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        began = time.perf_counter()
        await self._socket.send_str(json.dumps(request))
        text = ""
        shown: list[tuple[float, str]] = []
        while True:
            message = await self._socket.receive(_LIMIT_SECONDS)
            if message.type != aiohttp.WSMsgType.TEXT:
                raise CellFailed(f"{self.name}: the kernel's connection is closed: {message}")
            reply = json.loads(message.data)
            if reply["parent_header"].get("msg_id") != identity:
                continue
            now = time.perf_counter() - began
            if reply["msg_type"] != "execute_input":
                shown.append((now, json.dumps(reply["content"])))
            if reply["msg_type"] == "stream":
                text += reply["content"]["text"]
            elif reply["msg_type"] == "error":
                raise CellFailed(f"{self.name}: " + _CONTROL.sub("", "\n".join(reply["content"]["traceback"])))
            elif reply["msg_type"] == "status" and reply["content"]["execution_state"] == "idle":
                return Output(text, _first_line_seconds(text, shown), now)


def _first_line_seconds(text: str, shown: list[tuple[float, str]]) -> float | None:
    """shown: the contents of all messages to the page, in the order of arrival, with their times."""
    line = _RANKS.sub("", text.partition("\n")[0])
    quoted = json.dumps(line)[1:-1]
    return next((seconds for seconds, content in shown if quoted in content), None) if line else None
