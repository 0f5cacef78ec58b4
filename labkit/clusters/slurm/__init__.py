"""Ranks on the nodes of a Slurm cluster: a job allocates them, an agent on each runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.clusters.slurm.cluster import SlurmCluster as SlurmCluster
    from labkit.clusters.slurm.cluster import slurm as slurm

# looked up at first use: the options of `labkit launch` are read without torch
_PUBLIC = {
    "SlurmCluster": "labkit.clusters.slurm.cluster",
    "slurm": "labkit.clusters.slurm.cluster",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
