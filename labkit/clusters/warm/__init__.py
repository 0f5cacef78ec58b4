"""A warm process that has torch imported, and fresh processes forked from it for every run."""

from labkit.clusters.warm.client import WarmProcess, WarmProcessDied, shared
from labkit.clusters.warm.collector import Collector
from labkit.clusters.warm.fresh import Reporter, commands, seconds, shared_file, slot
from labkit.clusters.warm.session import Session

__all__ = [
    "Collector",
    "Reporter",
    "Session",
    "WarmProcess",
    "WarmProcessDied",
    "commands",
    "seconds",
    "shared",
    "shared_file",
    "slot",
]
