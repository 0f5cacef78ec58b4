"""What is sent to the cluster for one run, as plain dicts: an indexed Job, a headless Service and a Secret.

Pod i of the Job is node i: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode. The Service
gives each a name in the cluster's DNS, `JOB-0.JOB`. The Secret holds the run's request: nothing of it stands in a
command line or in the environment.
"""

from __future__ import annotations

import base64
import copy
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.clusters.agent import Plan
from labkit.clusters.job import InvalidJob

Object = dict[str, Any]
"""One of Kubernetes' objects, as in its JSON."""

CONTAINER = "ranks"
FOLDER = "/run/labkit"
"""Where the Secret is mounted."""
REQUEST, ALIVE = "request", "alive"
"""Keys of the Secret: what is run, and a number that grows as long as the notebook lives."""
SECRET_LIMIT_BYTES = 1 << 20
"""Kubernetes' own limit for a Secret."""

WAIT_LIMIT_SECONDS = 24 * 3600
"""So long a Job may wait for its nodes, beside the time that its ranks may run."""
_PULL_SECONDS = 1800
"""A pod's time begins before its image is there."""
_KEPT_AFTER_END_SECONDS = 300
_GRACE_SECONDS = 5

RUN_LABEL = "labkit/run"
_SESSION_LABEL = "labkit/session"
_MANAGER_LABEL = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class Shape:
    """What every pod is given."""

    image: str
    nnodes: int
    nproc_per_node: int
    gpus_per_node: int = 0
    cpus: str = ""
    """Of each node, as Kubernetes writes them: `8`, `500m`."""
    memory: str = ""
    """Of each node: `64Gi`."""
    service_account: str = ""
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the rendered pod template; see `overlaid`."""


@dataclass(frozen=True)
class Names:
    """How the objects of one run are found again."""

    run: str
    namespace: str
    session: str
    """The notebook's kernel."""

    @property
    def labels(self) -> dict[str, str]:
        return {_MANAGER_LABEL: "labkit", RUN_LABEL: self.run, _SESSION_LABEL: self.session}

    @property
    def master(self) -> str:
        """Name of node 0 in the cluster's DNS."""
        return f"{self.run}-0.{self.run}"


def job(names: Names, shape: Shape, timeout: float, silence: float) -> Object:
    """The Job. timeout: seconds that ranks may run; silence: seconds that its pods outlive a silent notebook."""
    pod_seconds = round(timeout) + _PULL_SECONDS
    template: Object = {
        "metadata": {"labels": names.labels},
        "spec": {
            "restartPolicy": "Never",
            "subdomain": names.run,
            "activeDeadlineSeconds": pod_seconds,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            # learners' code has no business with the cluster's API
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": shape.image,
                    "command": command(silence),
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "workingDir": "/tmp",
                    "resources": resources(shape),
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": volume_mounts(),
                }
            ],
            "volumes": volumes(names),
        },
    }
    if shape.service_account:
        template["spec"]["serviceAccountName"] = shape.service_account
    template = overlaid(template, shape.pod_template)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        # what a pod template says of itself is for the Job too: queues such as Kueue's look there
        "metadata": overlaid(metadata(names), template["metadata"]),
        "spec": {
            "completionMode": "Indexed",
            "completions": shape.nnodes,
            "parallelism": shape.nnodes,
            # a pod that is gone takes its ranks with it: the run has failed, nothing is to be started again
            "backoffLimit": 0,
            "activeDeadlineSeconds": pod_seconds + WAIT_LIMIT_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_AFTER_END_SECONDS,
            "template": template,
        },
    }


def service(names: Names) -> Object:
    """A headless Service, for the pods' names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(names),
        "spec": {
            "clusterIP": "None",
            "selector": {RUN_LABEL: names.run},
            # ranks look for each other before any of them is said to be ready
            "publishNotReadyAddresses": True,
        },
    }


def secret(names: Names, request: bytes) -> Object:
    """The Secret with the run's request. Raises `InvalidJob` when Kubernetes would not take it."""
    if len(request) + 1024 > SECRET_LIMIT_BYTES:
        raise InvalidJob(f"this run's request has {len(request):,} bytes; Kubernetes takes {SECRET_LIMIT_BYTES:,}")
    data = {REQUEST: base64.b64encode(request).decode(), ALIVE: base64.b64encode(b"0").decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(names), "type": "Opaque", "data": data}


def packed(plan: Plan) -> bytes:
    """A run's request: what the Secret holds."""
    return zlib.compress(pickle.dumps(plan), 9)


def unpacked(request: bytes) -> Plan:
    """The inverse of `packed`, in the pod. It is trusted: the notebook's kernel wrote it."""
    plan: Plan = pickle.loads(zlib.decompress(request))
    return plan


def metadata(names: Names) -> Object:
    return {"name": names.run, "namespace": names.namespace, "labels": names.labels}


def owned_by(owner: Object) -> Object:
    """A patch that has an object deleted together with `owner`, which the API has answered with."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {"metadata": {"ownerReferences": [reference]}}


def command(silence: float) -> list[str]:
    """What runs in each pod."""
    return ["python", "-P", "-m", "labkit.clusters.kubernetes.pod", FOLDER, f"{silence:g}"]


def resources(shape: Shape) -> Object:
    """Limits; Kubernetes takes what is requested from them. Nothing asked for: the namespace's defaults."""
    limits = {"cpu": shape.cpus, "memory": shape.memory, "nvidia.com/gpu": str(shape.gpus_per_node or "")}
    given = {name: value for name, value in limits.items() if value}
    return {"limits": given, "requests": dict(given)} if given else {}


def volumes(names: Names) -> list[Object]:
    return [
        {"name": "request", "secret": {"secretName": names.run, "defaultMode": 0o444}},
        # NCCL and data workers share memory between processes; a container's own /dev/shm has 64 MiB
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def volume_mounts() -> list[Object]:
    return [
        {"name": "request", "mountPath": FOLDER, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]


def overlaid(base: Object, over: Mapping[str, Any]) -> Object:
    """`base` with `over` laid on it: maps are merged, lists of named things by their names, all else is replaced.

    So a template that names the container `ranks` changes the one that is there, and a new volume comes beside the
    others.
    """
    merged = copy.deepcopy(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            merged[key] = overlaid(old, value)
        elif isinstance(old, list) and (by := _key(value)) and by == _key(old):
            known = {item[by]: item for item in old}
            for item in value:
                known[item[by]] = overlaid(known.get(item[by], {}), item)
            merged[key] = list(known.values())
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _key(value: Any) -> str:
    """What tells the items of a list apart, as for `kubectl patch`; empty when it is no such list."""
    for name in ("mountPath", "name"):
        if isinstance(value, list) and value and all(isinstance(item, Mapping) and name in item for item in value):
            return name
    return ""
