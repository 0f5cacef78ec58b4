"""A stand-in for Docker's engine, for machines without it: the part of its API that DockerSpawner uses, over TCP.

The client is real, Docker's own SDK. A container is its command in bubblewrap, with the user, folders, memory folders
and environment that it was created with. There are no images: all have this machine's system, Python and labkit. The
network is this machine's; in place of the engine's address translation, the program gets another port to listen at.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from autograder.sandbox import view
from autograder.sandbox.bwrap import bwrap
from labkit.linux.free_port import free_port

PORT = "8888"


class StandInDocker(ThreadingHTTPServer):
    """Serves at 127.0.0.1."""

    daemon_threads = True

    def __init__(self, images: set[str], networks: set[str], course: Path) -> None:
        """course: what the images have as LABKIT_ROOT, a folder with templates and guides."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.images, self.networks, self.course = images, networks, course
        self.containers: dict[str, Container] = {}
        self.created: list[dict[str, Any]] = []
        """Arguments of all containers so far."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        for container in self.containers.values():
            container.stop()
        self.shutdown()
        self.server_close()


class Container:
    """One container. Raises `ValueError` for arguments that the engine would refuse."""

    def __init__(self, name: str, given: dict[str, Any], course: Path) -> None:
        self.id, self.name, self.given, self.course = uuid.uuid4().hex, name, given, course
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.binds = [bind.rsplit(":", 2) for bind in given["HostConfig"]["Binds"]]
        for source, target, mode in self.binds:
            if not (source.startswith("/") and target.startswith("/") and mode in ("ro", "rw")):
                raise ValueError(f"invalid volume specification: '{source}:{target}:{mode}'")

    def start(self) -> None:
        host, user = self.given["HostConfig"], self.given["User"].split(":")
        command = [bwrap(), "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--clearenv"]
        command += view.system(16 << 20)
        command += ["--perms", "1777", "--size", str(host["ShmSize"]), "--tmpfs", "/dev/shm"]
        for target, options in host["Tmpfs"].items():
            mode, size = re.fullmatch(r"mode=(\d+),size=(\w+)", options).groups()  # type: ignore[union-attr]
            nbytes = int(size.removesuffix("k")) * (1024 if size.endswith("k") else 1)
            command += ["--perms", mode, "--size", str(nbytes), "--tmpfs", target]
        # the image's files last: on this machine, they may be in a folder that a memory folder covers
        prefix = Path(sys.prefix)
        command += view.installed(prefix / "etc", prefix / "share", self.course / "templates", self.course / "docs")
        # as the engine does: outer folders first
        for source, target, mode in sorted(self.binds, key=lambda bind: bind[1].count("/")):
            command += ["--perms", "0755", "--dir", os.path.dirname(target)]
            command += ["--bind" if mode == "rw" else "--ro-bind", source, target]
        image = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "PYTHONPATH": str(view._labkit().parent)}
        own = dict(entry.split("=", 1) for entry in self.given["Env"])
        own["JUPYTERHUB_SERVICE_URL"] = own["JUPYTERHUB_SERVICE_URL"].replace(f":{PORT}", f":{self.port}")
        for variable, value in {**image, "LABKIT_ROOT": str(self.course), **own}.items():
            command += ["--setenv", variable, value]
        if host["ReadonlyRootfs"]:
            command += ["--remount-ro", "/"]
        words = list(self.given["Cmd"])
        if os.geteuid() == 0:
            privileges = ["--no-new-privs"] if "no-new-privileges" in host["SecurityOpt"] else []
            privileges += ["--bounding-set", "-all"] if host["CapDrop"] == ["ALL"] else []
            words = ["setpriv", "--reuid", user[0], "--regid", user[1], "--clear-groups", *privileges, "--", *words]
        else:
            command += ["--unshare-user", "--uid", user[0], "--gid", user[1]]
        self.process = subprocess.Popen([*command, "--chdir", "/", "--", *words], stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def inspect(self) -> dict[str, Any]:
        runs = self.process is not None and self.process.poll() is None
        code = None if self.process is None else self.process.poll()
        state = {"Running": runs, "ExitCode": code or 0, "Status": "running" if runs else "exited"}
        state |= {"Error": "", "FinishedAt": "", "StartedAt": "", "Pid": 1 if runs else 0}
        mapped = {f"{PORT}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]} if runs else {}
        network = {"Networks": {self.given["HostConfig"]["NetworkMode"]: {"IPAddress": "172.18.0.2"}}, "Ports": mapped}
        configuration = {"Env": self.given["Env"], "Image": self.given["Image"]}
        return {"Id": self.id, "Name": f"/{self.name}", "State": state, "NetworkSettings": network} | {
            "Config": configuration
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandInDocker

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            code, answer = self._answer(re.sub(r"^/v1\.\d+", "", parts.path), query, body)
        except KeyError as missing:
            code, answer = 404, {"message": f"No such object: {missing}"}
        except ValueError as wrong:
            code, answer = 400, {"message": str(wrong)}
        data = b"" if code == 204 else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _do

    def _answer(self, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        server = self.server
        if path in ("/version", "/_ping"):
            return 200, {"ApiVersion": "1.44", "MinAPIVersion": "1.24", "Version": "25.0"}
        if image := re.fullmatch("/images/(.+)/json", path):
            return 200, {"Id": {name: name for name in server.images}[image[1]], "Config": {"Cmd": None}}
        if path == "/networks":
            wanted = json.loads(query["filters"])["name"]
            return 200, [{"Id": name, "Name": name} for name in server.networks if name in wanted]
        if path == "/containers/create":
            if body["Image"] not in server.images or body["HostConfig"]["NetworkMode"] not in server.networks:
                raise KeyError(body["Image"])
            made = Container(query["name"], body, server.course)
            server.containers[made.id] = made
            server.created.append(body)
            return 201, {"Id": made.id, "Warnings": []}
        what = re.fullmatch(r"/containers/([^/]+)(?:/(json|start|stop|kill))?", path)
        if what is None:
            raise KeyError(path)
        found = {key: one for one in server.containers.values() for key in (one.id, one.name)}[what[1]]
        if what[2] == "json":
            return 200, found.inspect()
        if what[2] == "start":
            found.start()
            return 204, None
        found.stop()
        if self.command == "DELETE" or found.given["HostConfig"]["AutoRemove"]:
            server.containers.pop(found.id, None)
        return 204, None
