"""Runs each server under the learner's own account on this machine. The hub, which root starts, changes to it.

Homes are the users' own, and there is no sandbox: what a learner can reach is what this machine's permissions allow.
The exchange is that of servers on Slurm: see slurm.py. What a learner may use is limited as in a sandbox.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Int, Unicode

from autograder.classroom import addresses
from autograder.classroom.folders import Folders, learners
from autograder.classroom.limits import notices
from autograder.classroom.limits.groups import new_group
from autograder.classroom.site import Site, Users
from autograder.classroom.spawners import system_users, user_access
from autograder.sandbox.cgroups import Cgroup
from labkit import catalogue
from labkit.challenges import sending
from labkit.hub import idle_minutes
from labkit.hub import notices as hub_notices
from labkit.linux import prctl
from labkit.progress.home import CLASSROOM_PAGE


class UserSpawner(LocalProcessSpawner):  # type: ignore[misc]  # JupyterHub has no types
    """Starts a server as its user, within limits. It ends with the hub, too, even a killed one."""

    notices = Unicode(help="Folder of notices to learners, a folder for each.").tag(config=True)
    processes = Int(1024, help="Processes and threads of one user.").tag(config=True)
    memory_bytes = Int(0, help="Memory of one user; 0: no limit.").tag(config=True)
    file_bytes = Int(0, help="Size of one file; 0: no limit.").tag(config=True)

    _group: Cgroup | None = None

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return a function that a new process calls before it becomes the server."""
        become, hub = super().make_preexec_fn(name), os.getpid()

        def enter() -> None:
            if self._group is not None:
                self._group.add(os.getpid())
            # the user's other processes count, too, but only what the server starts is held to it
            _lower(resource.RLIMIT_NPROC, self.processes)
            if self.file_bytes:
                _lower(resource.RLIMIT_FSIZE, self.file_bytes)
            become()
            prctl.die_with_parent(hub, signal.SIGTERM)

        return enter

    async def start(self) -> tuple[str, int]:
        """Start the server; return its address and port."""
        notices, person = Path(self.notices, self.user.name), pwd.getpwnam(self.user.name)
        notices.mkdir(parents=True, exist_ok=True)
        notices.chmod(0o700)
        os.chown(notices, person.pw_uid, person.pw_gid)  # root writes them all the same
        self._group = new_group(self.memory_bytes, self.processes, self.log.warning)
        return await super().start()  # type: ignore[no-any-return]

    async def stop(self, now: bool = False) -> None:
        """End the server, and its control group with it."""
        await super().stop(now)
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)
            self._group = None


def _lower(kind: int, most: int) -> None:
    """Lower a limit of this process; the machine's own may be lower already."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def configure(c: Any, site: Site, folders: Folders) -> None:
    """Set JupyterHub's spawner. Servers reach the hub by its socket."""
    users, servers = _table(site), site.servers
    c.JupyterHub.spawner_class = UserSpawner
    c.UserSpawner.notices = str(folders.notices(""))
    c.UserSpawner.processes = servers.processes
    c.UserSpawner.memory_bytes = int(servers.memory_gib * 2**30)
    c.UserSpawner.file_bytes = int(servers.disk_gib * 2**30)
    c.Spawner.cmd = [users.python, "-P", "-m", "labkit.hub.server"]
    c.Spawner.env_keep = ["PATH", "LANG", "LC_ALL"]
    c.Spawner.environment = {
        "LABKIT_ROOT": users.lab,
        "LABKIT_WORKSPACE": lambda spawner: os.path.expanduser(f"~{spawner.user.name}"),
        idle_minutes.VARIABLE: str(site.servers.idle_ranks_minutes),
        sending.EXCHANGE: f"{users.exchange}/{site.course.name}",
        hub_notices.FILE: lambda spawner: str(folders.notices(spawner.user.name) / notices.FILE),
        CLASSROOM_PAGE: addresses.page(site),
    }


def missing(site: Site) -> list[str]:
    """Return which of root's rights, the shared folder and the learners' copy of the lab are missing."""
    return list(_missing(_table(site), system_users.known(learners(site, site.folder))))


def missing_for(site: Site, people: Sequence[str]) -> list[str]:
    """Return what these users cannot reach."""
    users = _table(site)
    python, shown = Path(users.python), [Path(users.lab, name) for name in ("templates", "docs")]
    return list(user_access.missing(people, python, shown)) if os.geteuid() == 0 else []


def _missing(users: Users, people: Sequence[str]) -> Iterator[str]:
    if os.geteuid() != 0:
        yield "only root can start servers as users of this machine: start the hub as root, or change [servers] kind"
    yield from system_users.missing(Path(users.exchange))
    lab = Path(users.lab)
    if not (lab / "templates").is_dir():
        yield f"[servers.users] lab: there is no {lab}/templates: copy templates/ and docs/ of the lab there"
    for name in ("solutions", "autograder", "notebooks"):
        if (lab / name).exists() or lab.resolve() == catalogue.root().resolve():
            yield f"[servers.users] lab: learners would see {lab}/{name}: make a copy with templates/ and docs/ alone"
            break
    if not os.access(users.python, os.X_OK):
        yield f"[servers.users] python: {users.python} is not there, or is no program"
    if powerful := [name for name in people if pwd.getpwnam(name).pw_uid == os.geteuid()]:
        yield f"{powerful[0]} cannot be a learner: its server would have all rights of the hub"
    if os.geteuid() == 0:
        yield from user_access.exposed(people, Path(users.python))


def _table(site: Site) -> Users:
    assert site.servers.users is not None, "site.load has checked it"
    return site.servers.users
