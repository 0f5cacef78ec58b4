"""The virtual cluster: any number of ranks on this machine, true numbers, modelled time."""

from labkit.clusters.virtual.cluster import VirtualCluster, virtual
from labkit.clusters.virtual.desk import Alteration
from labkit.clusters.virtual.diagnosis import DeadlockError, MismatchError, PeerFailed
from labkit.clusters.virtual.faults import LinkDown, jitter, kill, link, slow
from labkit.clusters.virtual.kept import KeptRanks

__all__ = [
    "Alteration",
    "DeadlockError",
    "KeptRanks",
    "LinkDown",
    "MismatchError",
    "PeerFailed",
    "VirtualCluster",
    "jitter",
    "kill",
    "link",
    "slow",
    "virtual",
]
