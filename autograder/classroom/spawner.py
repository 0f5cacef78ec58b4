"""JupyterHub's spawner for sandboxes: each learner's server in namespaces of its own, on a socket opened by the hub.

Bubblewrap makes the sandbox with a small program that waits; the hub's zygote forks the server into it, so that all
learners share what they import.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import quote

from aiohttp import ClientError
from jupyterhub.httpclient import fetch
from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Int, Unicode

from autograder.classroom import learner_view
from autograder.classroom.folders import Folders
from autograder.classroom.inside import zygote
from autograder.classroom.limits.groups import new_group
from autograder.sandbox.cgroups import Cgroup
from autograder.sandbox.inside import seccomp
from labkit.forking.client import NoForkServer, fork
from labkit.forking.request import Request, name_of
from labkit.zygote import entering


def socket_url(path: Path) -> str:
    """Return the address of a server on a socket, as JupyterHub writes it. Host names have no capital letters."""
    return f"http+unix://{quote(str(path), safe='')}"


class SandboxSpawner(LocalProcessSpawner):  # type: ignore[misc]  # JupyterHub has no types
    """Starts bubblewrap, whose end is the end of everything in it. It ends with the hub, too, even a killed one."""

    root = Unicode(help="Folder of the classroom.").tag(config=True)
    running = Unicode(help="Folder of sockets, deleted with the hub.").tag(config=True)
    course_name = Unicode(help="The course's name in the exchange.").tag(config=True)
    page = Unicode(help="Address or path of the course's page.").tag(config=True)
    idle_ranks_minutes = Int(30, help="Minutes without a cell after which ranks end; 0: never.").tag(config=True)
    processes = Int(1024, help="Processes and threads of one learner, where root starts the hub.").tag(config=True)

    memory_bytes = Int(0, help="Memory of one learner's sandbox; 0: no limit.").tag(config=True)
    file_bytes = Int(0, help="Size of one file; 0: no limit.").tag(config=True)

    _group: Cgroup | None = None

    @property
    def folders(self) -> Folders:
        return Folders(Path(self.root), Path(self.running), self.course_name)

    async def start(self) -> str:
        """Make a sandbox, and have the zygote fork the server into it; return the server's address."""
        name = self.user.name
        uid = self.folders.prepare_learner(name)
        path = self.folders.socket(name)
        limits = learner_view.Limits(self.processes, self.memory_bytes, self.file_bytes)
        group = self._group = new_group(self.memory_bytes, self.processes, self.log.warning)
        with contextlib.ExitStack() as until_started:
            # whoever runs the hub reads the log of a server that does not start
            log = until_started.enter_context((self.folders.hub / f"server-{name}.log").open("wb"))
            until_end, lifeline = _pipe(until_started)
            info, info_writer = _pipe(until_started)
            denied = until_started.enter_context(_denied())
            bubblewrap, *options = learner_view.command(self.folders, name, uid, limits)
            self.proc = subprocess.Popen(
                [
                    *(bubblewrap, "--info-fd", str(info_writer.fileno()), "--add-seccomp-fd", str(denied.fileno())),
                    *options,
                ],
                env=self._environment({}),
                stdin=until_end,
                stdout=info_writer,
                stderr=log,
                pass_fds=[info_writer.fileno(), denied.fileno()],
                start_new_session=True,
                preexec_fn=None if group is None else lambda: group.add(os.getpid()),
            )
            self.pid = self.proc.pid
            info_writer.close()
            request = Request(
                entering.main,
                {
                    "join": [] if group is None else group.files(),
                    "inside": await asyncio.to_thread(self._first_inside, info),
                    "program": name_of(zygote.main),
                    "arguments": learner_view.options(uid, limits),
                },
                self._environment(self.get_env()),
                "/",
                entering.NAME,
                prints=True,
            )
            opened = until_started.enter_context(listening(path))
            descriptors = [file.fileno() for file in (log, opened, lifeline)]
            await asyncio.to_thread(self._fork, request, descriptors)
            await self._answer(socket_url(path))
        return socket_url(path)

    def _environment(self, hub: Mapping[str, str]) -> dict[str, str]:
        return learner_view.environment(self.folders, hub, self.user.name, self.idle_ranks_minutes, self.page)

    def _first_inside(self, info: IO[bytes]) -> int:
        """Wait until the sandbox is made; return the PID of its first process. Raises `RuntimeError`."""
        text = b""
        # bubblewrap reports the process that it has made, then the program in it reports that all is ready
        while not text.endswith(b"\n\n") and (line := info.readline()):
            text += line
        try:
            return int(json.loads(text)["child-pid"])
        except ValueError:
            raise self._problem("no sandbox could be made") from None

    def _fork(self, request: Request, descriptors: list[int]) -> None:
        """Have the zygote fork the server. It may not have started yet."""
        limit = time.monotonic() + self.start_timeout
        while True:
            try:
                fork(request, descriptors, str(self.folders.zygote_socket))
                return
            except NoForkServer as problem:
                if time.monotonic() > limit or self.proc.poll() is not None:
                    raise self._problem(str(problem)) from problem
            time.sleep(0.2)

    def _problem(self, failure: str) -> RuntimeError:
        return RuntimeError(f"{failure}; the log of {self.user.name}'s server is server-{self.user.name}.log")

    async def _answer(self, url: str) -> None:
        """Wait until the server answers. Raises `RuntimeError` if it has ended; the hub would wait to the limit."""
        while True:
            try:
                await fetch(f"{url}{self.server.base_url}api", raise_for_status=False)
                return
            except ClientError:
                if self.proc.poll() is not None:
                    raise self._problem("the server has ended") from None
                await asyncio.sleep(0.2)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return `env`: learners are no users of this machine."""
        return env

    async def stop(self, now: bool = False) -> None:
        """End the sandbox. Bubblewrap passes no signals on: what is in it is killed."""
        await super().stop(now=True)
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)
            self._group = None


def _pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Return both ends of a pipe, for reading and writing, that are closed here with `stack`."""
    read, write = os.pipe()
    return stack.enter_context(open(read, "rb")), stack.enter_context(open(write, "wb", buffering=0))


def _denied() -> IO[bytes]:
    """Return a file of the system calls that are denied to bubblewrap's own process in the sandbox, too.

    That process is the learner's where an ordinary user starts the hub, and could be made to do what others may not.
    """
    file = open(os.memfd_create("denied system calls"), "w+b")  # noqa: SIM115  # closed by the caller
    file.write(seccomp.for_this_machine(seccomp.filter_program) or b"")
    file.seek(0)
    return file


def listening(path: Path) -> socket.socket:
    """Return a listening socket at `path`.

    JupyterHub appends a port to every address, and its proxy takes that for part of the path: a link has that name.
    """
    with_port = path.with_name(f"{path.name}:80")
    for old in (path, with_port):
        old.unlink(missing_ok=True)
    opened = socket.socket(socket.AF_UNIX)
    opened.bind(str(path))
    path.chmod(0o600)
    opened.listen(128)
    os.symlink(path.name, with_port)
    return opened
