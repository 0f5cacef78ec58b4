"""The virtual cluster: any number of ranks on this machine, real numbers, modelled time."""

from labkit.clusters.virtual.cluster import VirtualCluster, virtual
from labkit.clusters.virtual.hosts.rank_pool import RankPool
from labkit.clusters.virtual.hosts.scheduler_server import Alteration
from labkit.clusters.virtual.process_cluster import VirtualProcessCluster
from labkit.clusters.virtual.scheduler.errors import DeadlockError, LinkDown, MismatchError, PeerFailed
from labkit.clusters.virtual.scheduler.faults import jitter, kill, link, slow

__all__ = [
    "Alteration",
    "DeadlockError",
    "LinkDown",
    "MismatchError",
    "PeerFailed",
    "RankPool",
    "VirtualCluster",
    "VirtualProcessCluster",
    "jitter",
    "kill",
    "link",
    "slow",
    "virtual",
]
