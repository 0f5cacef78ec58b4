"""Servers in pods of a Kubernetes cluster. The hub runs in the cluster, or where it reaches the pods' addresses.

Each learner's home is a claim of its own. The exchange is in the classroom's folder, on a claim that the hub and all
pods mount; a pod sees only the learner's parts of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from autograder.classroom.folders import Folders, give
from autograder.classroom.limits.memory import scratch_bytes
from autograder.classroom.site import Kubernetes, Site
from autograder.classroom.spawners import containers

if TYPE_CHECKING:
    from labkit.clusters.kubernetes.api import Api

_USER = 1000
"""User id of the image, and of a hub in the image of grading."""
RIGHTS = {
    "pods": ("create", "delete", "get", "list", "watch"),
    "persistentvolumeclaims": ("create", "get"),
    "events": ("list", "watch"),
}
"""Permissions of KubeSpawner: verbs by kind of objects, those of cluster/jupyterhub/kubernetes/permissions.yaml."""


def configure(c: Any, site: Site, folders: Folders) -> None:
    """Set JupyterHub's spawner, and the address of the hub in the cluster."""
    kubernetes, servers = _table(site), site.servers
    port = urlsplit(kubernetes.hub_address).port or 80
    containers.configure(c, site, kubernetes.hub_address, f"http://0.0.0.0:{port}")
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.JupyterHub.cleanup_servers = False  # the next hub finds the pods
    spawner = c.KubeSpawner
    spawner.namespace, spawner.image = kubernetes.namespace, kubernetes.image
    spawner.component_label = f"{site.course.name}-server"
    spawner.extra_labels = {"labkit/server": site.course.name}  # by which a NetworkPolicy selects it
    if kubernetes.service_account:
        spawner.service_account = kubernetes.service_account
        spawner.automount_service_account_token = True
    spawner.uid = spawner.gid = spawner.fs_gid = _USER
    spawner.pod_security_context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spawner.container_security_context = {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    spawner.cpu_limit, spawner.cpu_guarantee = kubernetes.cpus, min(0.5, kubernetes.cpus)
    memory_bytes = int(servers.memory_gib * 2**30)
    if memory_bytes:
        spawner.mem_limit, spawner.mem_guarantee = memory_bytes, memory_bytes // 4
    spawner.storage_pvc_ensure = True
    spawner.pvc_name_template = f"{site.course.name}-home-{{user_server}}"
    spawner.storage_access_modes = ["ReadWriteOnce"]
    spawner.storage_capacity = f"{servers.disk_gib:g}Gi"
    if kubernetes.storage_class:
        spawner.storage_class = kubernetes.storage_class
    scratch = str(scratch_bytes(memory_bytes))
    spawner.volumes = [
        {"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}},
        {"name": "classroom", "persistentVolumeClaim": {"claimName": kubernetes.classroom_claim}},
        {"name": "exchange", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": scratch}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": scratch}},
    ]
    spawner.volume_mounts = [
        {"name": "home", "mountPath": containers.HOME},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        # nbgrader checks that it can write to the root of the exchange, and never does
        {"name": "exchange", "mountPath": containers.EXCHANGE},
        *_exchange(kubernetes, folders),
    ]
    c.Spawner.pre_spawn_hook = partial(prepare, folders)


def _exchange(kubernetes: Kubernetes, folders: Folders) -> Iterator[dict[str, Any]]:
    for part, own, read_only in containers.PARTS:
        inside = folders.in_exchange(part, "{unescaped_username}" if own else "").relative_to(folders.root)
        yield {
            "name": "classroom",
            "mountPath": f"{containers.EXCHANGE}/{folders.course_name}/{part}",
            "subPath": str(PurePosixPath(kubernetes.classroom_path, inside)),
            "readOnly": read_only,
        }


def prepare(folders: Folders, spawner: Any) -> None:
    """Make a learner's folders of the exchange, before a pod mounts them."""
    learner = spawner.user.name
    folders.prepare_learner(learner)
    if os.geteuid() == 0:  # then `prepare_learner` has given them to a user of this machine
        give(folders.in_exchange("inbound", learner), _USER)


def missing(site: Site) -> list[str]:
    """Return which of the package, the cluster and the claim are missing."""
    packages = [
        *containers.package("kubespawner", "jupyterhub-kubespawner"),
        *containers.package("kubernetes", "kubernetes"),
    ]
    return packages or list(_of_cluster(_table(site)))


def _of_cluster(kubernetes: Kubernetes) -> Iterator[str]:
    from autograder.classroom.kubernetes_check import forbidden, problems  # imports torch: seconds in every hub
    from labkit.clusters.kubernetes.errors import ApiRefused

    def ask(api: Api) -> str:
        if missing := forbidden(api, RIGHTS):
            return (
                f"the hub may not do this in the namespace {kubernetes.namespace} of Kubernetes: "
                f"{', '.join(missing)}; the role of cluster/jupyterhub/kubernetes/permissions.yaml allows it"
            )
        try:
            api.get(api.path("v1", "persistentvolumeclaims", kubernetes.classroom_claim))
        except ApiRefused as problem:
            if problem.status != 404:
                raise
            return (
                f"there is no claim {kubernetes.classroom_claim} in the namespace {kubernetes.namespace}: make "
                "one that several nodes can write to, with the classroom's folder"
            )
        return ""

    yield from problems(kubernetes.namespace, ask)


def _table(site: Site) -> Kubernetes:
    assert site.servers.kubernetes is not None, "site.load has checked it"
    return site.servers.kubernetes
