"""The objects of one run, as plain dicts: an indexed Job, a headless Service and a Secret.

Pod i of the Job is node i: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode. The Service
gives each a name in the cluster's DNS, `JOB-0.JOB`. The Secret holds the run's request, of which no part is in a
command line or in the environment.
"""

from __future__ import annotations

import base64
import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.clusters.agent import LaunchPlan
from labkit.clusters.job import InvalidJob
from labkit.transport import pickled

Object = dict[str, Any]
"""One of Kubernetes' objects, as in its JSON."""

CONTAINER = "ranks"
FOLDER = "/run/labkit"
"""Mount path of the Secret."""
REQUEST, ALIVE = "request", "alive"
"""Keys of the Secret: the request, and a number that grows as long as the notebook lives."""
SECRET_LIMIT_BYTES = 1 << 20
"""Kubernetes' own limit for a Secret."""

# NCCL and data workers share memory between processes; a container's own /dev/shm has 64 MiB
SHARED_MEMORY_VOLUME: Object = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
SHARED_MEMORY_MOUNT: Object = {"name": "shared-memory", "mountPath": "/dev/shm"}

WAIT_LIMIT_SECONDS = 24 * 3600
"""Maximum time that a Job may wait for its nodes, in addition to the time that its ranks may run."""
PULL_SECONDS = 1800
"""Time for the image: a pod's time begins before it has been pulled."""
_KEPT_AFTER_END_SECONDS = 300
_GRACE_SECONDS = 5

RUN_LABEL = "labkit/run"
SESSION_LABEL = "labkit/session"
_MANAGER_LABEL = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class Shape:
    """Properties of every pod."""

    image: str
    nnodes: int
    nproc_per_node: int
    gpus_per_node: int = 0
    cpus: str = ""
    """CPUs per node, in Kubernetes' format: `8`, `500m`."""
    memory: str = ""
    """Memory per node: `64Gi`."""
    service_account: str = ""
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    """Template that is merged over the rendered pod template; see `overlaid`."""


@dataclass(frozen=True)
class Names:
    """Names by which the objects of one run are found again."""

    run: str
    namespace: str
    session: str
    """Name of the notebook's kernel session; empty for objects that belong to none."""

    @property
    def labels(self) -> dict[str, str]:
        session = {SESSION_LABEL: self.session} if self.session else {}
        return {_MANAGER_LABEL: "labkit", RUN_LABEL: self.run, **session}

    @property
    def master(self) -> str:
        """Name of node 0 in the cluster's DNS."""
        return f"{self.run}-0.{self.run}"


def job(names: Names, shape: Shape, timeout: float, silence: float) -> Object:
    """The Job. timeout: seconds that ranks may run; silence: seconds that its pods outlive a silent notebook."""
    pod_seconds = round(timeout) + PULL_SECONDS
    template = pods(names.labels, names.run, shape, command(silence), volumes(names), volume_mounts())
    limits = {"activeDeadlineSeconds": pod_seconds, "terminationGracePeriodSeconds": _GRACE_SECONDS}
    template["spec"] = {**limits, **template["spec"]}
    made = indexed_job(metadata(names), shape, template)
    made["spec"]["activeDeadlineSeconds"] = pod_seconds + WAIT_LIMIT_SECONDS
    made["spec"]["ttlSecondsAfterFinished"] = _KEPT_AFTER_END_SECONDS
    return made


def pods(
    labels: Mapping[str, str],
    subdomain: str,
    shape: Shape,
    command: Sequence[str],
    volumes: Sequence[Object],
    mounts: Sequence[Object],
) -> Object:
    """The template of pods that run `command`, by the restricted Pod Security Standard, under the shape's own."""
    template: Object = {
        "metadata": {"labels": dict(labels)},
        "spec": {
            "restartPolicy": "Never",
            "subdomain": subdomain,
            # learners' code must not access the cluster's API
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": shape.image,
                    "command": list(command),
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "workingDir": "/tmp",
                    "resources": resources(shape),
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": list(mounts),
                }
            ],
            "volumes": list(volumes),
        },
    }
    if shape.service_account:
        template["spec"]["serviceAccountName"] = shape.service_account
    return overlaid(template, shape.pod_template)


def indexed_job(metadata: Object, shape: Shape, template: Object) -> Object:
    """A Job with a pod for each node; one that fails ends the others."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        # a pod template's metadata is for the Job too: queues such as Kueue's read it there
        "metadata": overlaid(metadata, template["metadata"]),
        "spec": {
            "completionMode": "Indexed",
            "completions": shape.nnodes,
            "parallelism": shape.nnodes,
            # a pod that is gone takes its ranks with it: the run has failed, and nothing is restarted
            "backoffLimit": 0,
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
            # ranks look each other up before any of them is reported as ready
            "publishNotReadyAddresses": True,
        },
    }


def secret(names: Names, request: bytes) -> Object:
    """The Secret with the run's request. Raises `InvalidJob` if Kubernetes would reject it."""
    if len(request) + 1024 > SECRET_LIMIT_BYTES:
        raise InvalidJob(f"this run's request has {len(request):,} bytes; Kubernetes takes {SECRET_LIMIT_BYTES:,}")
    data = {REQUEST: base64.b64encode(request).decode(), ALIVE: base64.b64encode(b"0").decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(names), "type": "Opaque", "data": data}


def packed(plan: LaunchPlan) -> bytes:
    """A run's request: the contents of the Secret."""
    return zlib.compress(pickled.dumps(plan), 9)


def unpacked(request: bytes) -> LaunchPlan:
    """The inverse of `packed`, in the pod. The data is trusted: the notebook's kernel wrote it."""
    plan: LaunchPlan = pickled.loads(zlib.decompress(request))
    return plan


def metadata(names: Names) -> Object:
    namespace = {"namespace": names.namespace} if names.namespace else {}
    return {"name": names.run, **namespace, "labels": names.labels}


def owned_by(owner: Object) -> Object:
    """A patch that makes an object be deleted together with `owner`, an object from the API's answer."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {"metadata": {"ownerReferences": [reference]}}


def command(silence: float) -> list[str]:
    """The command of each pod."""
    return ["python", "-P", "-m", "labkit.clusters.kubernetes.pod", FOLDER, f"{silence:g}"]


def resources(shape: Shape) -> Object:
    """Limits; Kubernetes derives the requests from them. Nothing set: the namespace's defaults."""
    limits = {"cpu": shape.cpus, "memory": shape.memory, "nvidia.com/gpu": str(shape.gpus_per_node or "")}
    chosen = {name: value for name, value in limits.items() if value}
    return {"limits": chosen, "requests": dict(chosen)} if chosen else {}


def volumes(names: Names) -> list[Object]:
    return [{"name": "request", "secret": {"secretName": names.run, "defaultMode": 0o444}}, SHARED_MEMORY_VOLUME]


def volume_mounts() -> list[Object]:
    return [{"name": "request", "mountPath": FOLDER, "readOnly": True}, SHARED_MEMORY_MOUNT]


def overlaid(base: Object, over: Mapping[str, Any]) -> Object:
    """`base` merged with `over`: maps are merged, lists of named items by their names, everything else is replaced.

    So a template that names the container `ranks` changes the existing one, and a new volume is added to the others.
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
    """The key that identifies a list's items, as for `kubectl patch`; empty if there is none."""
    for name in ("mountPath", "name"):
        if isinstance(value, list) and value and all(isinstance(item, Mapping) and name in item for item in value):
            return name
    return ""
