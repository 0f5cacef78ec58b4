"""The Kubernetes cluster as a kind of clusters."""

from __future__ import annotations

from typing import Any

from labkit.clusters.cluster import Cluster
from labkit.clusters.kind import ClusterKind, Option
from labkit.clusters.kinds import preset
from labkit.clusters.options import BACKEND, GPUS_PER_NODE, NNODES, NPROC_PER_NODE, duration
from labkit.command_line.finding import Finding, State


def _cluster() -> type:
    from labkit.clusters.kubernetes.cluster import KubernetesCluster

    return KubernetesCluster


def _make(**options: Any) -> Cluster:
    from labkit.clusters.kubernetes.cluster import kubernetes

    return kubernetes(**options)


def _examine() -> Finding:
    from labkit.clusters.kubernetes.api import Api
    from labkit.clusters.kubernetes.errors import KubernetesError
    from labkit.clusters.kubernetes.login import as_person

    try:
        api = Api(as_person(), preset("kubernetes").get("namespace"))
        version = api.get("/version")["gitVersion"]
        kinds = ("jobs.batch", "services", "secrets")
        missing = [kind.partition(".")[0] for kind in kinds if not api.may("create", kind)]
    except KubernetesError as error:
        return Finding(State.MISSING, str(error), "not needed on a laptop")
    seen = f"{version} at {api.address}, namespace {api.namespace}"
    if missing:
        return Finding(
            State.MISSING,
            f"{seen}: you may not create {', '.join(missing)} there",
            "docs/kubernetes.md shows the role to ask for",
        )
    return Finding(State.OK, seen)


KIND = ClusterKind(
    name="kubernetes",
    cluster=_cluster,
    make=_make,
    options=(
        NNODES,
        NPROC_PER_NODE,
        BACKEND,
        GPUS_PER_NODE,
        Option("--image", "the container image that ranks run in, with labkit and torch"),
        Option("--namespace", "namespace for pods, if not the kubeconfig's", metavar="NAME"),
        Option("--context", "kubeconfig context, if not the current one", metavar="NAME"),
        Option("--cpus", "cores per pod: 8, 500m", metavar="N"),
        Option("--memory", "memory per pod: 64Gi", metavar="SIZE"),
        Option("--service-account", "account that pods run as", metavar="NAME"),
        Option(
            "--pod-template",
            "YAML merged into each pod: nodeSelector, tolerations, volumes, imagePullSecrets",
            metavar="FILE",
        ),
        Option("--objects", "job, trainjob (Kubeflow Trainer), or auto", metavar="KIND"),
        Option("--timeout", "stop a run's ranks after this long, 30m", duration, "TIME"),
    ),
    example="--namespace course --nnodes 2 --gpus-per-node 8 --image registry/lab:1",
    title="Kubernetes",
    examine=_examine,
)
