"""Servers in containers of this machine's Docker. The hub runs on the same machine, outside of a container.

A learner's container has the home and parts of the exchange from the classroom's folder, and an account of the
learner's name, which nbgrader writes on submissions. It has no capabilities; its server is published to this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from autograder.classroom import learner_view
from autograder.classroom.folders import Folders
from autograder.classroom.limits.memory import scratch_bytes
from autograder.classroom.site import Docker, Site
from autograder.classroom.spawners import containers


def configure(c: Any, site: Site, folders: Folders) -> None:
    """Set JupyterHub's spawner, and the address of the hub in the network of the containers."""
    docker, servers = _table(site), site.servers
    containers.configure(c, site, docker.hub_address, docker.hub_address)
    c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
    spawner = c.DockerSpawner
    spawner.image, spawner.network_name, spawner.prefix = docker.image, docker.network, site.course.name
    spawner.remove = True  # what is kept is in the classroom's folder
    spawner.use_internal_ip, spawner.host_ip = False, "127.0.0.1"
    spawner.cpu_limit = docker.cpus
    memory_bytes = int(servers.memory_gib * 2**30)
    if memory_bytes:
        spawner.mem_limit = memory_bytes
    scratch = scratch_bytes(memory_bytes)
    spawner.extra_host_config = {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": servers.processes,
        "shm_size": scratch,
        "memswap_limit": memory_bytes or None,
        "read_only": True,
        # nbgrader checks that it can write to the root of the exchange, and never does
        "tmpfs": {"/tmp": f"mode=1777,size={scratch}", containers.EXCHANGE: "mode=0777,size=64k"},
    }
    c.Spawner.pre_spawn_hook = partial(prepare, folders)


def prepare(folders: Folders, spawner: Any) -> None:
    """Give a learner's container its user and its folders, before it is made."""
    learner = spawner.user.name
    uid = folders.prepare_learner(learner)
    uid = os.getuid() if uid is None else uid
    spawner.extra_create_kwargs = {"user": f"{uid}:{uid}"}
    course = f"{containers.EXCHANGE}/{folders.course_name}"
    shown = {
        str(folders.in_exchange(part, learner if own else "")): {
            "bind": f"{course}/{part}",
            "mode": "ro" if read_only else "rw",
        }
        for part, own, read_only in containers.PARTS
    }
    for file in learner_view.account(folders, learner, uid, containers.HOME):
        shown[str(file)] = {"bind": f"/etc/{file.name}", "mode": "ro"}
    spawner.volumes = {str(folders.home(learner)): {"bind": containers.HOME, "mode": "rw"}, **shown}


def missing(site: Site) -> list[str]:
    """Return which of the package, the daemon, the image and the network are missing."""
    problems = list(containers.package("dockerspawner", "dockerspawner"))
    return problems or list(_of_daemon(_table(site)))


def _of_daemon(docker: Docker) -> Iterator[str]:
    import docker as sdk
    from requests.exceptions import RequestException

    try:
        client = sdk.from_env()
        client.ping()
    except (sdk.errors.DockerException, RequestException) as problem:
        yield f"Docker's daemon does not answer: {problem}; is it running, and may this user reach it?"
        return
    try:
        client.images.get(docker.image)
    except sdk.errors.NotFound:
        yield (
            f"the image {docker.image} is not on this machine: docker pull {docker.image}, or build it from "
            f"cluster/containers/notebooks.Containerfile"
        )
    if not client.networks.list(names=[docker.network]):
        yield (
            f"there is no network {docker.network} in Docker: docker network create "
            f"-o com.docker.network.bridge.enable_icc=false {docker.network}"
        )


def _table(site: Site) -> Docker:
    assert site.servers.docker is not None, "site.load has checked it"
    return site.servers.docker
