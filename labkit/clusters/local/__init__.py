"""Ranks as real processes of this machine."""

from labkit.clusters.local.cluster import LocalCluster, local

__all__ = ["LocalCluster", "local"]
