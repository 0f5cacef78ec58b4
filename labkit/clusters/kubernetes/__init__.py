"""Nodes that are pods of a Kubernetes cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.clusters.kubernetes.cluster import KubernetesCluster as KubernetesCluster
    from labkit.clusters.kubernetes.cluster import kubernetes as kubernetes
    from labkit.clusters.kubernetes.errors import KubernetesError as KubernetesError

# looked up at first use: the options of `labkit launch` are read without torch
_PUBLIC = {
    "KubernetesCluster": "labkit.clusters.kubernetes.cluster",
    "KubernetesError": "labkit.clusters.kubernetes.errors",
    "kubernetes": "labkit.clusters.kubernetes.cluster",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
