"""Descriptions of a pod's status, for people: why it waits, how it ended. Pure functions over the API's dicts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from labkit.clusters.kubernetes.manifest import CONTAINER, Object

Phase = Literal["pending", "running", "succeeded", "failed"]

INDEX = "batch.kubernetes.io/job-completion-index"
_NEVER_STARTS = (
    # ErrImagePull is retried once; ImagePullBackOff follows
    *("InvalidImageName", "ErrImageNeverPull", "ImagePullBackOff", "ImageInspectError"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
)
_REFUSED = ("forbidden", "denied the request", "is invalid")
_RANKS_CONTAINERS = (CONTAINER, "node")
"""The second is the name in Kubeflow's runtime."""


def node_of(pod: Object) -> int | None:
    """Node number of a pod, from its completion index; None if it has none."""
    metadata = pod["metadata"]
    for where in ("annotations", "labels"):
        index = (metadata.get(where) or {}).get(INDEX, "")
        if index.isdigit():
            return int(index)
    return None


def phase(pod: Object) -> Phase:
    """Phase of a pod. One that is being deleted but has not ended counts as failed."""
    reported = str(pod.get("status", {}).get("phase", "Pending")).lower()
    if reported in ("succeeded", "failed"):
        return "succeeded" if reported == "succeeded" else "failed"
    if reported == "unknown" or pod["metadata"].get("deletionTimestamp"):
        return "failed"
    state = _container(pod).get("state", {})
    return "running" if reported == "running" and ("running" in state or "terminated" in state) else "pending"


def why_pending(pod: Object) -> str:
    """Why it does not run yet, according to the cluster; may be empty."""
    waiting = _container(pod).get("state", {}).get("waiting", {})
    if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
        return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("status") == "False" and condition["type"] == "PodScheduled":
            return _shortened(condition.get("message") or condition.get("reason", ""))
    if pod.get("spec", {}).get("nodeName"):
        return f"on {pod['spec']['nodeName']}, its image is fetched or its container made"
    return "no node has been found for it yet"


def why_never(pod: Object) -> str:
    """Why it will never run, and what to try; empty while it may."""
    waiting = _container(pod).get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason not in _NEVER_STARTS:
        return ""
    if "Image" in reason:
        image = next((c["image"] for c in pod["spec"]["containers"] if c["name"] in _RANKS_CONTAINERS), "")
        return (
            f"the image {image} cannot be had ({reason}: {message}). Is its name right, and may the cluster read its "
            "registry (imagePullSecrets in --pod-template)?"
        )
    if "runAsNonRoot" in message or "non-root" in message:
        return f"{reason}: {message}. The image must say by number who it runs as: `USER 1000` in its Containerfile"
    return f"the container cannot be made ({reason}: {message})"


def how_it_ended(pod: Object) -> str:
    """Why a pod is gone or has failed, and what to try."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    where = f" on {pod['spec']['nodeName']}" if pod.get("spec", {}).get("nodeName") else ""
    ended = _container(pod).get("state", {}).get("terminated", {})
    if ended.get("reason") == "OOMKilled":
        return f"pod {name}{where} had no memory left and was killed (OOMKilled): more with --memory?"
    if status.get("reason") == "Evicted":
        return f"pod {name} was evicted{where}: {status.get('message', '')}"
    if status.get("reason") == "DeadlineExceeded":
        return f"pod {name} was stopped: its time was over"
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition.get("status") == "True":
            return f"pod {name}{where} was taken away ({condition.get('reason')}): {condition.get('message', '')}"
    if ended:
        code, message = ended.get("exitCode"), ended.get("message", "")
        by = f", signal {code - 128}" if isinstance(code, int) and code > 128 else ""
        return f"pod {name}{where} ended with exit code {code}{by}{': ' * bool(message)}{message}"
    if pod["metadata"].get("deletionTimestamp") or phase(pod) == "running":
        return f"pod {name}{where} was deleted"
    return f"pod {name}{where} failed {status.get('reason', '')} {status.get('message', '')}".rstrip()


def summary(pods: Iterable[Object], nnodes: int) -> str:
    """`2 pods: 1 running, 1 pending: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu`."""
    phases: dict[str, int] = defaultdict(int)
    reasons: dict[str, None] = {}
    for pod in pods:
        phases[phase(pod)] += 1
        if phase(pod) == "pending":
            reasons[why_pending(pod)] = None
    missing = nnodes - sum(phases.values())
    if missing > 0:
        phases["not made yet"] = missing
    counts = ", ".join(f"{count} {name}" for name, count in phases.items())
    return f"{nnodes} pod{'s' * (nnodes > 1)}: {counts}" + "".join(f": {reason}" for reason in list(reasons)[:2])


def refusal(events: Iterable[Mapping[str, Any]]) -> str:
    """Why the cluster creates no pods of a Job, from the Job's events, and what to try; empty if nothing is wrong."""
    for event in events:
        message = str(event.get("message", ""))
        # other failures are temporary: the Job retries
        if event.get("reason") != "FailedCreate" or not any(word in message for word in _REFUSED):
            continue
        if "exceeded quota" in message:
            return f"{message}. Ask for fewer nodes or GPUs, or wait until other runs have ended"
        if "failed quota" in message or "must specify" in message:
            return f"{message}. Say how much a node needs: --cpus 4 --memory 16Gi"
        if "violates PodSecurity" in message:
            return f"{message}. Show this to whoever runs the cluster: docs/kubernetes.md says what the pods are given"
        return f"{message}. Show this to whoever runs the cluster"
    return ""


def _container(pod: Object) -> Object:
    """The status of the ranks' container."""
    statuses: list[Object] = pod.get("status", {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") in _RANKS_CONTAINERS), {})


def _shortened(message: str) -> str:
    """The scheduler's message, without its part about preemption."""
    return re.split(r"\.? preemption:", message)[0].rstrip(". ")
