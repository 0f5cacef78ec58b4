"""The virtual cluster: any number of ranks on this machine, real numbers, modelled time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.clusters.virtual.cluster import VirtualCluster as VirtualCluster
    from labkit.clusters.virtual.cluster import virtual as virtual
    from labkit.clusters.virtual.hosts.rank_pool import RankPool as RankPool
    from labkit.clusters.virtual.hosts.scheduler_server import Alteration as Alteration
    from labkit.clusters.virtual.process_cluster import VirtualProcessCluster as VirtualProcessCluster
    from labkit.clusters.virtual.scheduler.errors import DeadlockError as DeadlockError
    from labkit.clusters.virtual.scheduler.errors import LinkDown as LinkDown
    from labkit.clusters.virtual.scheduler.errors import MismatchError as MismatchError
    from labkit.clusters.virtual.scheduler.errors import PeerFailed as PeerFailed
    from labkit.clusters.virtual.scheduler.faults import jitter as jitter
    from labkit.clusters.virtual.scheduler.faults import kill as kill
    from labkit.clusters.virtual.scheduler.faults import link as link
    from labkit.clusters.virtual.scheduler.faults import slow as slow

# looked up at first use: the options of `labkit launch` are read without torch
_PUBLIC = {
    "Alteration": "labkit.clusters.virtual.hosts.scheduler_server",
    "DeadlockError": "labkit.clusters.virtual.scheduler.errors",
    "LinkDown": "labkit.clusters.virtual.scheduler.errors",
    "MismatchError": "labkit.clusters.virtual.scheduler.errors",
    "PeerFailed": "labkit.clusters.virtual.scheduler.errors",
    "RankPool": "labkit.clusters.virtual.hosts.rank_pool",
    "VirtualCluster": "labkit.clusters.virtual.cluster",
    "VirtualProcessCluster": "labkit.clusters.virtual.process_cluster",
    "jitter": "labkit.clusters.virtual.scheduler.faults",
    "kill": "labkit.clusters.virtual.scheduler.faults",
    "link": "labkit.clusters.virtual.scheduler.faults",
    "slow": "labkit.clusters.virtual.scheduler.faults",
    "virtual": "labkit.clusters.virtual.cluster",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
