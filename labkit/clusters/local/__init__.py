"""Ranks as real processes on this machine."""

from labkit.clusters.local.cluster import LocalCluster, local

__all__ = ["LocalCluster", "local"]
