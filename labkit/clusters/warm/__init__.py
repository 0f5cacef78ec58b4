"""A warm process that has torch imported, and fresh processes forked from it for every run."""

from labkit.clusters.warm.client import WarmProcess, WarmProcessDied, shared
from labkit.clusters.warm.fresh import Reporter, seconds, shared_file, slot

__all__ = ["Reporter", "WarmProcess", "WarmProcessDied", "seconds", "shared", "shared_file", "slot"]
