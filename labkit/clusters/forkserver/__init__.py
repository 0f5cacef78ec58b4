"""A forkserver that has torch imported; every run gets fresh processes forked from it."""

from labkit.clusters.forkserver.client import ForkServer, ForkServerDied, shared
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.forkserver.rank_process import Reporter, commands, seconds, shared_file, slot
from labkit.clusters.forkserver.session import Session

__all__ = [
    "Collector",
    "ForkServer",
    "ForkServerDied",
    "Reporter",
    "Session",
    "commands",
    "seconds",
    "shared",
    "shared_file",
    "slot",
]
