"""The virtual cluster: any number of ranks on this machine, true numbers, modelled time."""

from labkit.clusters.virtual.cluster import VirtualCluster, virtual
from labkit.clusters.virtual.diagnosis import DeadlockError, MismatchError, PeerFailed

__all__ = ["DeadlockError", "MismatchError", "PeerFailed", "VirtualCluster", "virtual"]
