"""The objects of a run, made anew as labkit makes them, from the few things that a learner chooses.

What a learner has sent is compared with that and thrown away: nothing reaches the cluster that is not made here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autograder.classroom.site import GpuPods
from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.manifest import Names, Object, Shape

GPU = "nvidia.com/gpu"
USER_LABEL = "labkit/user"
API_VERSIONS = {"jobs": "batch/v1", "secrets": "v1", "services": "v1"}
"""API version of each kind of objects that a run has."""
RUN = r"labkit-[0-9a-f]{10}"
"""A run's name, as labkit chooses it."""
_SESSION = re.compile(r"[0-9a-f]{16}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_UID = re.compile(r"[0-9a-fA-F-]{1,64}")


class OtherShape(Exception):
    """Not what `%cluster kubernetes` of this course makes. The message names what differs."""


@dataclass(frozen=True)
class Run:
    """A Job as a learner asks for it."""

    job: Object
    nnodes: int
    gpus: int
    """GPUs of all nodes together."""


def label(user: str) -> str:
    """Return the label's value for a user. It must not end with a dot or dash; users' names have no capitals."""
    return user if user[-1].isalnum() else f"{user}X"


def user_of(thing: Mapping[str, Any]) -> str:
    """Return the owner of an object, or an empty string."""
    return str((thing["metadata"].get("labels") or {}).get(USER_LABEL, "")).removesuffix("X")


def secret(sent: Any, user: str, pods: GpuPods) -> Object:
    """Return the Secret with a run's request, which only that run's pods read."""
    names = _names(sent, pods)
    made = manifest.secret(names, b"")
    data = sent.get("data")
    for key in made["data"]:
        text = data.get(key) if isinstance(data, Mapping) else None
        if not isinstance(text, str) or not _BASE64.fullmatch(text):
            raise OtherShape(f"data.{key} is no text in base 64")
        made["data"][key] = text
    _compare(made, sent)
    return _marked(made, user)


def service(sent: Any, user: str, pods: GpuPods) -> Object:
    """Return the Service with the names of a run's pods."""
    made = manifest.service(_names(sent, pods))
    _compare(made, sent)
    return _marked(made, user)


def job(sent: Any, user: str, pods: GpuPods, longest_seconds: int, template: Mapping[str, Any]) -> Run:
    """Return the Job, whose pods end after `longest_seconds` at the latest.

    template: the course's template of pods, merged over labkit's own pods.
    """
    names = _names(sent, pods)
    try:
        nnodes, pod_spec = sent["spec"]["completions"], sent["spec"]["template"]["spec"]
        seconds = pod_spec["activeDeadlineSeconds"]
        (container,) = pod_spec["containers"]
        gpus = int(container["resources"].get("limits", {}).get(GPU, "0"))
        silence = float(container["command"][-1])
    except (LookupError, TypeError, ValueError, AttributeError):
        raise OtherShape("it is no Job of labkit's") from None
    whole = type(nnodes) is int and type(seconds) is int and nnodes > 0 and gpus >= 0
    if not whole or seconds <= manifest.PULL_SECONDS or not 0 < silence < math.inf:
        raise OtherShape("its number of pods or GPUs, or a time, is not possible")
    shape = Shape(pods.image, nnodes, 0, gpus, pods.cpus, pods.memory)
    _compare(manifest.job(names, shape, seconds - manifest.PULL_SECONDS, silence), sent)
    ours = replace(shape, pod_template=template)
    made = manifest.job(names, ours, min(seconds, longest_seconds) - manifest.PULL_SECONDS, silence)
    _marked(made["spec"]["template"], user)
    return Run(_marked(made, user), nnodes, nnodes * gpus)


def policy(user: str, pods: GpuPods) -> Object:
    """Return the NetworkPolicy by which a user's pods reach each other; others' have none that lets them in."""
    digest, own = hashlib.sha256(user.encode()).hexdigest()[:16], {USER_LABEL: label(user)}
    peers = [{"podSelector": {"matchLabels": own}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"ranks-{digest}", "namespace": pods.namespace, "labels": own},
        "spec": {
            "podSelector": {"matchLabels": own},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers}],
            "egress": [{"to": peers}],
        },
    }


def patch(sent: Any, name: str, secret: bool) -> Object:
    """Return a change of a run's Secret or Service: the number that shows that the notebook lives, or its owner."""
    match sent:
        case {"data": {manifest.ALIVE: str(number)}} if secret and _BASE64.fullmatch(number) and len(number) < 64:
            made: Object = {"data": {manifest.ALIVE: number}}
        case {"metadata": {"ownerReferences": [{"uid": str(uid)}]}} if _UID.fullmatch(uid):
            made = manifest.owned_by({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "uid": uid}})
        case _:
            raise OtherShape("of a run, only its number and its owner change")
    _compare(made, sent)
    return made


def _names(sent: Any, pods: GpuPods) -> Names:
    try:
        name, session = sent["metadata"]["name"], sent["metadata"]["labels"].get(manifest.SESSION_LABEL, "")
    except (LookupError, TypeError, AttributeError):
        raise OtherShape("it has no name or no labels") from None
    if not isinstance(name, str) or not re.fullmatch(RUN, name):
        raise OtherShape("its name is not one of labkit's")
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        raise OtherShape(f"its label {manifest.SESSION_LABEL} is not one of labkit's")
    return Names(name, pods.namespace, session)


def _marked(thing: Object, user: str) -> Object:
    thing["metadata"]["labels"][USER_LABEL] = label(user)
    return thing


def _compare(made: Any, sent: Any, place: str = "") -> None:
    """Raise `OtherShape` for the first place where they differ."""
    if isinstance(made, Mapping) and isinstance(sent, Mapping):
        for key in [*made, *sent]:
            inner = f"{place}.{key}" if place else str(key)
            if key not in made or key not in sent:
                named = inner[:200].encode("unicode_escape").decode()  # for the hub's log, too
                raise OtherShape(f"{named} is {'missing' if key in made else 'not allowed'}")
            _compare(made[key], sent[key], inner)
    elif isinstance(made, list) and isinstance(sent, list) and len(made) == len(sent):
        for number, (item, other) in enumerate(zip(made, sent, strict=True)):
            _compare(item, other, f"{place}[{number}]")
    elif made != sent:
        raise OtherShape(f"{place} is {str(sent)[:100]!r}, and the course has {str(made)[:100]!r}")
