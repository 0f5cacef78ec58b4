"""Servers as users of this machine, whom the learners are. The hub, which root starts, becomes each of them.

Homes are the users' own, and there is no sandbox: what a learner can reach is what this machine's permissions allow.
The exchange is that of servers on Slurm: see slurm.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autograder.classroom import addresses
from autograder.classroom.folders import Folders
from autograder.classroom.site import Site, Users
from autograder.classroom.spawners import system_users
from labkit import catalogue, idle_minutes
from labkit.challenges import sending
from labkit.progress.home import CLASSROOM_PAGE


def configure(c: Any, site: Site, folders: Folders) -> None:
    """Set JupyterHub's spawner. Servers reach the hub by its socket."""
    users = _table(site)
    c.JupyterHub.spawner_class = "localprocess"
    c.Spawner.cmd = [users.python, "-P", "-m", "labkit.hub_server"]
    c.Spawner.env_keep = ["PATH", "LANG", "LC_ALL"]
    c.Spawner.environment = {
        "LABKIT_ROOT": users.lab,
        "LABKIT_WORKSPACE": lambda spawner: os.path.expanduser(f"~{spawner.user.name}"),
        idle_minutes.VARIABLE: str(site.servers.idle_ranks_minutes),
        sending.EXCHANGE: f"{users.exchange}/{site.course.name}",
        CLASSROOM_PAGE: addresses.page(site),
    }


def missing(site: Site) -> list[str]:
    """Return what of root's rights, the shared folder and the learners' copy of the lab is missing."""
    return list(_missing(_table(site)))


def _missing(users: Users) -> Iterator[str]:
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


def _table(site: Site) -> Users:
    assert site.servers.users is not None, "site.load has checked it"
    return site.servers.users
