"""The virtual cluster: any number of ranks on this machine, real numbers, modelled time."""

from labkit.clusters.virtual.cluster import VirtualCluster, virtual
from labkit.clusters.virtual.diagnosis import DeadlockError, MismatchError, PeerFailed
from labkit.clusters.virtual.faults import LinkDown, jitter, kill, link, slow
from labkit.clusters.virtual.rank_pool import RankPool
from labkit.clusters.virtual.scheduler_server import Alteration

__all__ = [
    "Alteration",
    "DeadlockError",
    "LinkDown",
    "MismatchError",
    "PeerFailed",
    "RankPool",
    "VirtualCluster",
    "jitter",
    "kill",
    "link",
    "slow",
    "virtual",
]
