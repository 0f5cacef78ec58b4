"""Servers in sandboxes on this machine, which reach the hub by a socket."""

from __future__ import annotations

from typing import Any

from autograder.classroom import addresses
from autograder.classroom.folders import Folders
from autograder.classroom.site import Site
from autograder.classroom.spawner import SandboxSpawner
from autograder.sandbox import Sandbox, SandboxUnavailable


def configure(c: Any, site: Site, folders: Folders) -> None:
    """Set JupyterHub's spawner. The hub's own address is a socket in any case."""
    c.JupyterHub.spawner_class = SandboxSpawner
    c.SandboxSpawner.root, c.SandboxSpawner.running = str(folders.root), str(folders.running)
    c.SandboxSpawner.course_name = site.course.name
    c.SandboxSpawner.page = addresses.page(site)
    c.SandboxSpawner.processes = site.servers.processes
    c.SandboxSpawner.memory_bytes = int(site.servers.memory_gib * 2**30)
    c.SandboxSpawner.file_bytes = int(site.servers.disk_gib * 2**30)
    c.SandboxSpawner.idle_ranks_minutes = site.servers.idle_ranks_minutes


def missing(site: Site) -> list[str]:
    """Return why no sandbox can be made here; nothing if one can."""
    try:
        Sandbox().check()
    except SandboxUnavailable as problem:
        return [f"learners' servers need a sandbox, so that they cannot reach each other's homes and ports: {problem}"]
    return []
