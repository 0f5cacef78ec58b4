"""Nodes that are pods of a Kubernetes cluster."""

from labkit.clusters.kubernetes.api import KubernetesError
from labkit.clusters.kubernetes.cluster import KubernetesCluster, kubernetes

__all__ = ["KubernetesCluster", "KubernetesError", "kubernetes"]
