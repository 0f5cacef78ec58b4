"""Nodes that are pods of a Kubernetes cluster."""

from labkit.clusters.kubernetes.cluster import KubernetesCluster, kubernetes
from labkit.clusters.kubernetes.errors import KubernetesError

__all__ = ["KubernetesCluster", "KubernetesError", "kubernetes"]
