"""Ways to run learners' servers: a module for each `kind` of `[servers]`.

sandbox.py       in sandboxes on this machine
docker.py        in containers of this machine's Docker, by DockerSpawner
kubernetes.py    in pods, by KubeSpawner
slurm.py         in jobs of a Slurm cluster, by batchspawner
users.py         on this machine, as users of it
containers.py    what containers and pods have in common
system_users.py  what servers of a system's users have in common
user_access.py   what users of this machine cannot reach
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

from autograder.classroom.folders import Folders
from autograder.classroom.site import Site


class Kind(Protocol):
    """Functions that each module defines."""

    def configure(self, c: Any, site: Site, folders: Folders) -> None:
        """Set JupyterHub's spawner, and how servers reach the hub. c: JupyterHub's configuration."""

    def missing(self, site: Site) -> list[str]:
        """Return one sentence for each thing that is missing, with what to do."""


class KindOfSystemUsers(Kind, Protocol):
    """Functions of the modules where learners are users of a system."""

    def missing_for(self, site: Site, people: Sequence[str]) -> list[str]:
        """Return what keeps some of these people, users of the system, from a server; others can have theirs."""


def of_system_users(site: Site) -> KindOfSystemUsers | None:
    """Return the module of the site's kind of servers if learners are users of a system."""
    return None if site.servers.shared_exchange is None else cast(KindOfSystemUsers, of(site))


def of(site: Site) -> Kind:
    """Return the module of the site's kind of servers."""
    return cast(Kind, importlib.import_module(f"{__name__}.{site.servers.kind}"))
