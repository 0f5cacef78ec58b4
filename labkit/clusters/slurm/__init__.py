"""Ranks on the nodes of a Slurm cluster: a job allocates them, an agent on each runs them."""

from labkit.clusters.slurm.cluster import SlurmCluster, slurm

__all__ = ["SlurmCluster", "slurm"]
