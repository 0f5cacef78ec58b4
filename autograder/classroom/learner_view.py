"""The view of a learner's server: a bubblewrap command around it, and its environment.

The system, Python with its packages, labkit, the templates and the guides are visible, read-only. The
learner's home and own folder of the exchange are writable. The network is a private loopback: the server accepts
connections from a socket that the hub has opened, and reaches the hub's API by another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.folders import Folders
from autograder.classroom.limits import notices
from autograder.classroom.limits.memory import scratch_bytes
from autograder.sandbox import view
from labkit import catalogue
from labkit.challenges import sending
from labkit.hub import idle_minutes
from labkit.hub import notices as hub_notices
from labkit.progress.home import CLASSROOM_PAGE
from labkit.zygote import ADDRESS
from labkit.zygote.provisioner import PROVISIONER

_INSIDE = Path(__file__).parent / "inside"
"""Folder of the programs that run in the sandbox."""
EXCHANGE = "/exchange"
NOTICES = "/notices"
ZYGOTE = "@zygote"
"""Address of the learner's zygote, which the network namespace keeps from all others."""
_UID = 1000
"""User id in the sandbox where an ordinary user starts the hub."""


@dataclass(frozen=True)
class Limits:
    """Limits of one learner."""

    processes: int
    """Maximum processes and threads, where root starts the hub."""
    memory_bytes: int
    """Memory of everything in the sandbox together; 0: no limit."""
    file_bytes: int
    """Size of one file; 0: no limit."""


def command(folders: Folders, learner: str, uid: int | None, limits: Limits) -> list[str]:
    """Return the command that makes the sandbox of `learner`; inside/launch.py says what runs in it.

    uid: the learner's user id where root starts the hub, else None.
    """
    inside = _UID if uid is None else uid
    files = account(folders, learner, inside)
    result = [*view.namespaces(), "--die-with-parent"]
    if uid is None:
        result += ["--uid", str(inside), "--gid", str(inside)]
    result += view.system(scratch_bytes(limits.memory_bytes))
    result += view.installed(view.INSIDE, _INSIDE, *_more())
    result += ["--bind", str(folders.home(learner)), view.HOME]
    for file in files:
        result += ["--ro-bind", str(file), f"/etc/{file.name}"]
    result += ["--ro-bind-try", "/etc/fonts", "/etc/fonts"]
    # nbgrader checks that it can write to the root of the exchange, and never does
    result += ["--perms", "0777", "--size", str(1 << 16), "--tmpfs", EXCHANGE]
    result += ["--perms", "0755", "--dir", f"{EXCHANGE}/{folders.course_name}"]
    for part, kind, own in (
        ("outbound", "--ro-bind", ""),
        ("inbound", "--bind", learner),
        ("feedback", "--ro-bind", learner),
    ):
        result += [kind, str(folders.in_exchange(part, own)), f"{EXCHANGE}/{folders.course_name}/{part}"]
    result += ["--perms", "0755", "--dir", str(folders.running)]
    result += ["--ro-bind", str(folders.hub_socket.parent), str(folders.hub_socket.parent)]
    result += ["--ro-bind", str(folders.notices(learner)), NOTICES]
    launch = [sys.executable, "-S", "-P", str(_INSIDE / "launch.py"), json.dumps(options(uid, limits))]
    return [*result, "--remount-ro", "/", "--chdir", "/", "--", *launch]


def options(uid: int | None, limits: Limits) -> dict[str, int | None]:
    """Return the arguments of `drop` in inside/privileges.py."""
    return {"uid": uid, "processes": limits.processes, "file_bytes": limits.file_bytes}


def _more() -> list[Path]:
    """Return what learners see besides Python and labkit: JupyterLab with its extensions, the templates of all
    exercises, and the guides that `%explain` and `%search` show."""
    prefix, root = Path(sys.prefix), catalogue.root().resolve()
    folders = [prefix / "etc", prefix / "share", root / "labkit", root / "docs" / "images"]
    folders += [folder.resolve() / "templates" for folder in catalogue.roots()]
    # not the site's recordings of solved notebooks, which are beside them
    return [*(folder for folder in folders if folder.is_dir()), *(root / "docs").glob("*.md")]


def environment(
    folders: Folders, hub: Mapping[str, str], learner: str, idle_ranks_minutes: int, page: str
) -> dict[str, str]:
    """Return all environment variables in the sandbox. hub: those of JupyterHub for a server. page: the course's."""
    return {
        **view.environment(),
        **{name: value for name, value in hub.items() if name.startswith(("JUPYTERHUB_", "JPY_"))},
        "USER": learner,
        "SHELL": "/bin/bash",
        "LABKIT_ROOT": str(catalogue.root().resolve()),
        "LABKIT_WORKSPACE": view.HOME,
        idle_minutes.VARIABLE: str(idle_ranks_minutes),
        sending.EXCHANGE: f"{EXCHANGE}/{folders.course_name}",
        hub_notices.FILE: f"{NOTICES}/{notices.FILE}",
        CLASSROOM_PAGE: page,
        ADDRESS: ZYGOTE,
        "JUPYTER_DEFAULT_PROVISIONER_NAME": PROVISIONER,
    }


def zygote(folders: Folders, idle_ranks_minutes: int, page: str) -> list[str]:
    """Return the command of the hub's zygote: with the environment that all learners have, and nothing of the hub's."""
    shared = environment(folders, {}, "learner", idle_ranks_minutes, page)
    words = [f"{name}={value}" for name, value in shared.items() if name != ADDRESS]
    return ["/usr/bin/env", "-i", *words, sys.executable, "-P", "-m", "labkit.zygote", str(folders.zygote_socket)]


def account(folders: Folders, learner: str, uid: int, home: str = view.HOME) -> list[Path]:
    """Write the learner's /etc/passwd and /etc/group; return both files. home: as in the sandbox or container."""
    folder = folders.running / "accounts" / learner
    folder.mkdir(parents=True, exist_ok=True)
    passwd, group = folder / "passwd", folder / "group"
    passwd.write_text(f"{learner}:x:{uid}:{uid}:{learner}:{home}:/bin/bash\n")
    group.write_text(f"{learner}:x:{uid}:\n")
    return [passwd, group]
