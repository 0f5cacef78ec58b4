"""A person of the classroom, as a browser without pages: logs in, starts the server, runs code in a kernel."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor

import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect
from waiting import BROKEN_SECONDS, wait_until

FOUR_RANKS = """
%load_ext labkit
%cluster local --nproc-per-node 4
get_ipython().run_cell_magic("torchrun", "-n 4", '''
import torch, torch.distributed as dist
dist.init_process_group()
number = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(number)
print("the sum is", number.item())
''')
"""
"""A cell that runs on four processes, for a kernel that has loaded nothing."""


class Person:
    def __init__(self, address: str, name: str, password: str = "correct horse", certificate: str = "") -> None:
        """certificate: file of the one that the hub must show, if it has one."""
        self.address, self.name, self.certificate = address, name, certificate
        self.session = requests.Session()
        if certificate:
            self.session.verify, self.session.trust_env = certificate, False  # variables name other certificates
        page = self.session.get(f"{address}/hub/login", timeout=BROKEN_SECONDS)
        form = {"username": name, "password": password, "_xsrf": xsrf(page.text)}
        self.login = self.session.post(f"{address}/hub/login", data=form, timeout=BROKEN_SECONDS, allow_redirects=False)

    @property
    def logged_in(self) -> bool:
        return self.login.status_code == 302

    @property
    def server(self) -> str:
        return f"{self.address}/user/{self.name}"

    def get(self, path: str) -> requests.Response:
        return self.session.get(f"{self.address}{path}", timeout=BROKEN_SECONDS)

    def start_server(self) -> None:
        """Visit the hub's page for one's own server until it is ready; the visit also gives the server's cookies."""
        page = self.session.get(f"{self.address}/hub/spawn", timeout=BROKEN_SECONDS)

        def is_ready() -> bool:
            nonlocal page
            if "/hub/" in page.url:
                assert "Error" not in page.text.partition("<title>")[2].partition("</title>")[0], page.text
                page = self.session.get(f"{self.server}/lab", timeout=BROKEN_SECONDS)
            return "/hub/" not in page.url

        wait_until(is_ready, lambda: page.url, pause_seconds=0.3)
        assert page.url.startswith(self.server), page.url

    def stop_server(self) -> requests.Response:
        """Stop one's own server, as the hub's page does; the hub may not have finished when it answers."""
        self.get("/hub/home")
        token = next(c.value for c in self.session.cookies if c.name == "_xsrf" and c.path == "/hub/")
        url, headers = f"{self.address}/hub/api/users/{self.name}/server", {"X-XSRFToken": str(token)}
        return self.session.delete(url, headers=headers, timeout=BROKEN_SECONDS)

    def post(self, path: str, **fields: object) -> requests.Response:
        """Post JSON to one's own server, as JupyterLab does."""
        return self.send("POST", f"/user/{self.name}", path, **fields)

    def send(self, method: str, server: str, path: str, **fields: object) -> requests.Response:
        """Send JSON to a server behind the hub, whose pages were visited before. server: such as `/user/ada`."""
        token = next(c.value for c in self.session.cookies if c.name == "_xsrf" and c.path == f"{server}/")
        url, headers = f"{self.address}{server}{path}", {"X-XSRFToken": str(token)}
        return self.session.request(method, url, json=fields, headers=headers, timeout=BROKEN_SECONDS)

    def run(self, code: str) -> str:
        """Run code in a new kernel of one's own server; return its output, with errors."""
        kernel = self.post("/api/kernels", name="python3").json()["id"]
        request = self.session.prepare_request(requests.Request("GET", f"{self.server}/api"))
        url = f"{self.server.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex}"
        headers = {"Cookie": str(request.headers["Cookie"])}
        with ThreadPoolExecutor(1) as pool:  # where a browser is open, Playwright's loop runs in the test's own thread
            return pool.submit(lambda: asyncio.run(execute(url, headers, code, self.certificate))).result()


async def execute(url: str, headers: dict[str, str], code: str, certificate: str = "") -> str:
    """Run code in the kernel whose channels are at `url`; return its output, with errors."""
    request = HTTPRequest(url, headers=headers, request_timeout=BROKEN_SECONDS, ca_certs=certificate or None)
    connection = await websocket_connect(request)
    identity = uuid.uuid4().hex
    header = {"msg_id": identity, "msg_type": "execute_request", "username": "", "session": identity, "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    await connection.write_message(json.dumps(message))
    output = ""
    while True:
        text = await asyncio.wait_for(connection.read_message(), BROKEN_SECONDS)
        assert text is not None, f"the kernel's connection was closed after {output!r}"
        said = json.loads(text)
        if said["parent_header"].get("msg_id") != identity:
            continue
        if said["msg_type"] == "stream":
            output += said["content"]["text"]
        elif said["msg_type"] == "error":
            output += f"{said['content']['ename']}: {said['content']['evalue']}\n"
        elif said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            connection.close()
            return output


def xsrf(page: str) -> str:
    found = re.search(r'name="_xsrf" value="([^"]+)"', page)
    assert found, page
    return found[1]
