"""Permissions that the hub needs in the namespace of ranks, and those that it lacks there."""

from __future__ import annotations

from collections.abc import Iterator

from autograder.classroom.kubernetes_check import forbidden, problems
from autograder.classroom.site import GpuPods
from labkit.clusters.job import InvalidJob
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.pod_template import read_template

RIGHTS = {
    "jobs.batch": ("create", "delete", "get", "list", "patch"),
    "services": ("create", "delete", "patch"),
    "secrets": ("create", "delete", "patch"),
    "networkpolicies.networking.k8s.io": ("create",),
    "pods": ("list", "watch"),
    "pods/log": ("get",),
    "events": ("list",),
}
"""Verbs by kind of objects, those of cluster/jupyterhub/kubernetes/gpus/permissions.yaml."""


def missing(pods: GpuPods) -> Iterator[str]:
    """Yield faults of the pods' template, and permissions that the hub lacks, or why these are unknown."""
    try:
        read_template(pods.pod_template or None)
    except InvalidJob as problem:
        yield f"[gpus.kubernetes] pod_template: {problem}"

    def ask(api: Api) -> str:
        lacks = forbidden(api, RIGHTS)
        if not lacks:
            return ""
        return (
            f"for [gpus] the hub may not do this in the namespace {pods.namespace} of Kubernetes: {', '.join(lacks)}; "
            "the role of cluster/jupyterhub/kubernetes/gpus/permissions.yaml allows it"
        )

    yield from problems(pods.namespace, ask)
