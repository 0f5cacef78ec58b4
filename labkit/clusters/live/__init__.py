"""Live ranks stay alive between cells and keep their state; see docs/ranks.md."""

from labkit.clusters.live.ranks import Interrupted, LiveCluster, LiveRanks, RankState

__all__ = ["Interrupted", "LiveCluster", "LiveRanks", "RankState"]
