"""Settings of servers in containers and pods: the image of notebooks, the learner's home and parts of the exchange."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from autograder.classroom import addresses
from autograder.classroom.site import Site
from labkit.challenges import sending
from labkit.hub import idle_minutes
from labkit.installing import how_to_install
from labkit.progress.home import CLASSROOM_PAGE

HOME = "/home/lab"
"""The home of the image's user; see cluster/containers/notebooks.Containerfile."""
EXCHANGE = "/exchange"
COMMAND = ["python", "-m", "labkit.hub.server"]
PARTS = (("outbound", False, True), ("inbound", True, False), ("feedback", True, True))
"""Folders of the course in the exchange: name, whether each learner has an own one, whether it is read-only."""


def environment(site: Site) -> dict[str, str]:
    """Return the variables of a server besides the image's and JupyterHub's."""
    return {
        "HOME": HOME,
        "LABKIT_WORKSPACE": HOME,
        idle_minutes.VARIABLE: str(site.servers.idle_ranks_minutes),
        sending.EXCHANGE: f"{EXCHANGE}/{site.course.name}",
        CLASSROOM_PAGE: addresses.page(site),
    }


def configure(c: Any, site: Site, hub_address: str, bind_address: str) -> None:
    """Let servers reach the hub over the network."""
    c.JupyterHub.hub_connect_url, c.JupyterHub.hub_bind_url = hub_address, bind_address
    c.Spawner.cmd = COMMAND
    c.Spawner.environment = environment(site)


def package(module: str, name: str) -> Iterator[str]:
    """Yield how to install a package that only this kind of servers needs, if it is missing."""
    if importlib.util.find_spec(module) is None:
        yield f"the package {name} is not installed: {how_to_install(name, 'spawners')}"
