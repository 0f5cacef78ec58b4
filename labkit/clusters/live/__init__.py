"""Ranks that stay alive between cells and keep their state; see docs/ranks.md."""

from labkit.clusters.live.ranks import Interrupted, KeepsRanks, LiveRanks, RankState

__all__ = ["Interrupted", "KeepsRanks", "LiveRanks", "RankState"]
